"""Reward parts of a user's own: called for every step, counted, and named where they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rewards import own_rewards
from tests.runs.small import played, small_components, small_config

from stepwell.config.loading import dump_config, load_config
from stepwell.config.run import OwnPartConfig, RewardConfig
from stepwell.core import ConfigError, Observation, Split, Task
from stepwell.monitors.jsonl import read_entries
from stepwell.rewards import StepOutcome, load_own_parts
from stepwell.runs.run import train

FUNCTIONS = "tests.rewards.own_rewards"
OUTCOME = StepOutcome(
    text="<answer>Up</answer>",
    actions=("Up",),
    observation=Observation("a"),
    next_observation=Observation("b"),
    env_reward=0.5,
    is_last=True,
    success=True,
    task=Task("t", {}),
    turn=1,
)


def setting(function: str, weight: float = 1.0, name: str = "mine") -> str:
    return f'rewards.parts=[{{name="{name}", function="{FUNCTIONS}:{function}", weight={weight}}}]'


def score(function: str) -> float:
    (part,) = load_own_parts([OwnPartConfig(name="mine", function=f"{FUNCTIONS}:{function}", weight=2.0)])
    return part.score(OUTCOME)


def test_a_part_is_the_weight_times_what_the_function_returns() -> None:
    assert score("brevity") == pytest.approx(2.0 * -0.19)


def test_a_run_rewards_records_and_reports_the_part(tmp_path: Path) -> None:
    settings = (setting("brevity", 0.5), "train.num_updates=1", "recipe.name=grpo", "eval.num_tasks=0")
    config = small_config(*settings, folder=tmp_path)
    folder = train(config)
    steps = [step for trajectory in played(folder, 1) for step in trajectory.steps]
    assert steps
    for step in steps:
        part = 0.5 * -len(step.action.text) / 100  # type: ignore[union-attr]
        assert step.info["parts"]["mine"] == pytest.approx(part)  # type: ignore[call-overload, index]
        assert step.reward_parts["mine"] == pytest.approx(0.1 * part)  # times rewards.scale
        assert step.reward == pytest.approx(sum(step.reward_parts.values()))
    (update,) = [e.values for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"]
    assert update["reward/mine"] < 0


def test_the_function_is_told_what_the_agent_saw_wrote_and_did() -> None:
    own_rewards.SEEN.clear()
    components = small_components(setting("count_turn"))
    shown = components.play_demonstrations(4, 0.0, 0)
    seen = own_rewards.SEEN
    assert len(seen) == sum(len(t.steps) for t in shown)
    assert {step.task.id for step in seen} == {t.id for t in components.tasks(Split.TRAIN, 4, 0)}
    assert sum(step.is_last for step in seen) == len(shown)
    assert sum(step.success for step in seen) == sum(t.status.value == "success" for t in shown)
    first = next(step for step in seen if step.turn == 0)
    assert first.observation.text != first.next_observation.text
    assert first.actions and ",".join(first.actions) in first.text
    components.close()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("divide_by_zero", "raised ZeroDivisionError: division by zero (own_rewards.py, line 20)"),
        ("overflow", "returned inf; it must return a finite number"),
        ("say", "returned '1.0'; it must return a finite number"),
        ("wait", "is async, not a plain function"),
        ("NUMBER", "is int, not a plain function"),
        ("compare", "must take one argument, the step: def reward(step)"),
        ("shortness", "has no 'shortness'. Its functions: brevity, count_turn"),
    ],
)
def test_a_function_that_cannot_reward_is_named_with_what_is_wrong(function: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        score(function)
    assert str(caught.value).startswith(f"rewards.parts 'mine': {FUNCTIONS}:{function}")
    assert words in str(caught.value)


def test_a_function_without_a_module_says_how_to_write_it() -> None:
    with pytest.raises(ConfigError, match="must have the form module:function or"):
        load_own_parts([OwnPartConfig(name="mine", function="brevity")])


def test_a_part_without_a_name_has_that_of_its_function() -> None:
    parts = load_config("frozenlake", [f'rewards.parts=["{FUNCTIONS}:brevity"]']).rewards.parts
    assert parts == (OwnPartConfig(name="brevity", function=f"{FUNCTIONS}:brevity"),)
    (large,) = load_config("frozenlake", ['rewards.parts=[{function="a:My_Part"}]']).rewards.parts
    assert large.name == "my_part"  # names in figures are lower case


def test_a_function_may_be_given_as_an_object() -> None:
    parts = [own_rewards.brevity, {"name": "other", "function": lambda step: 2.0}]
    first, other = load_own_parts(RewardConfig.model_validate({"parts": parts}).parts)
    assert (first.config.name, first.function) == ("brevity", own_rewards.brevity)
    assert (other.config.name, other.score(OUTCOME)) == ("other", 2.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (setting("brevity", name="format"), "the name 'format' in rewards.parts is taken"),
        ('rewards.parts=[{name="mine"}]', "rewards.parts.0.function: is missing"),
        (setting("brevity", name="My part"), "rewards.parts"),
    ],
)
def test_settings_of_a_part_are_checked_at_the_start(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config("frozenlake", [text])


def test_an_agent_of_ones_own_refuses_parts_since_it_returns_the_whole_reward() -> None:
    with pytest.raises(ConfigError, match="your own agent returns its whole reward"):
        load_config("frozenlake", [setting("brevity"), "own_agent.function=a:b"])


def test_a_robot_refuses_parts() -> None:
    from stepwell.runs.build.components import Components

    with pytest.raises(ConfigError, match="a robot's step has no text"):
        _ = Components(load_config("metaworld-reach", [setting("brevity")])).is_robot


def test_parts_survive_writing_and_reading_the_settings(tmp_path: Path) -> None:
    config = load_config("frozenlake", [setting("brevity", 0.25)])
    (tmp_path / "run.toml").write_text(dump_config(config))
    assert load_config(tmp_path / "run.toml") == config
