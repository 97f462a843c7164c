"""Whole batches rewarded: real episodes, a real endpoint, and the penalty for repetition."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rewards.judge_server import judging
from tests.runs.small import small_components

from stepwell.config.run import RewardConfig
from stepwell.core import ConfigError, InfraError, StateForm, Status, Step, TokenAction, Trajectory
from stepwell.rewards import BatchJudge
from stepwell.rollout import LanguagePlayer
from stepwell.runs.build.components import Components

SETTINGS = ("recipe.name=vagen-full", "agent.strategy=grounding_world_modeling")
WANTED = ("task", "format", "grounding", "world_modeling")


@pytest.fixture(scope="module")
def components() -> Components:
    return small_components(*SETTINGS, "rewards.judge.kind=rule")


def shown(components: Components) -> list[Trajectory]:
    return components.play_demonstrations(3, 0.0, 0)


def weights(**judge: Any) -> RewardConfig:
    return RewardConfig.model_validate({"judge": judge, "scale": 0.1})


def steps_of(trajectories: list[Trajectory]) -> list[Step]:
    return [step for trajectory in trajectories for step in trajectory.steps]


def say(step: Step, components: Components, observation: str, prediction: str) -> None:
    """Put other words into a step, in the right form."""
    actions = list(step.info["actions"])  # type: ignore[arg-type]
    text = components.language.agent.write(
        actions, observation=observation, reasoning="So.", prediction=prediction
    )
    step.action = TokenAction(step.action.action_ids, text)  # type: ignore[union-attr]


def test_episodes_are_rewarded_by_the_rule_judge_and_keep_every_state(components: Components) -> None:
    for trajectory in shown(components):
        for step in trajectory.steps:
            assert step.reward_parts["grounding"] == pytest.approx(0.1 * 0.5)
            assert step.reward_parts["world_modeling"] == pytest.approx(0.1 * 0.5)
            assert set(step.info["state"]) == set(StateForm)  # type: ignore[arg-type]
        assert set(trajectory.info["state"]) == set(StateForm)  # type: ignore[arg-type]


def test_a_batch_judged_again_by_rules_keeps_its_rewards(components: Components) -> None:
    batch = shown(components)
    before = [step.reward for step in steps_of(batch)]
    figures = BatchJudge(components.language.agent, weights(kind="rule"), parts=WANTED).reward(batch)
    assert [step.reward for step in steps_of(batch)] == pytest.approx(before)
    assert figures["repetition/penalized"] == 0.0


def test_the_endpoints_word_becomes_the_reward_of_each_part(components: Components) -> None:
    batch = shown(components)
    liar = steps_of(batch)[0]
    state = liar.info["state"]["natural_language"]  # type: ignore[index,call-overload]
    prediction = components.language.agent.read(liar.action.text).prediction  # type: ignore[union-attr]
    say(liar, components, "The goal is nowhere.", prediction or "")
    assert state != "The goal is nowhere."
    with judging() as server:
        judge = {"kind": "endpoint", "endpoint": {"url": server.url, "model": "m"}}
        mine = BatchJudge(components.language.agent, weights(**judge), parts=WANTED)
        figures = mine.reward(batch)
    assert liar.reward_parts["grounding"] == 0.0
    assert liar.reward_parts["world_modeling"] == pytest.approx(0.05)
    assert all(step.reward_parts["grounding"] == pytest.approx(0.05) for step in steps_of(batch)[1:])
    assert liar.reward == pytest.approx(sum(liar.reward_parts.values()))
    assert figures["judge/agreement"] == 1.0
    assert figures["judge/num_questions"] == 2 * len(steps_of(batch))
    assert figures["judge/prompt_tokens"] == 100 * figures["judge/num_calls"] > 0


def test_a_failing_endpoint_leaves_every_reward_as_it_was(components: Components) -> None:
    batch = shown(components)
    before = [dict(step.reward_parts) for step in steps_of(batch)]
    endpoint = {"url": "http://127.0.0.1:9/v1", "model": "m", "max_retries": 0}
    mine = BatchJudge(components.language.agent, weights(kind="endpoint", endpoint=endpoint), parts=WANTED)
    with pytest.raises(InfraError, match="gave no answer"):
        mine.reward(batch)
    assert [step.reward_parts for step in steps_of(batch)] == before


def test_a_wrong_sentence_said_everywhere_costs_each_text_that_says_it(components: Components) -> None:
    batch = shown(components)
    same = "The player will be at the position of the goal."
    steps = [step for step in steps_of(batch) if "same place" not in str(step.info["state"])]
    assert len(steps) >= 2
    for step in steps:
        say(step, components, same, components.language.agent.read(step.action.text).prediction or "")  # type: ignore[union-attr]
    judge = BatchJudge(components.language.agent, weights(kind="rule", repetition_penalty=0.1), parts=WANTED)
    figures = judge.reward(batch)
    for step in steps:
        assert step.reward_parts["repetition"] == pytest.approx(0.1 * -0.1)
        assert step.reward == pytest.approx(sum(step.reward_parts.values()))
    assert judge.find_most_repeated()[0].sentence == "the player will be at the position of the goal"
    assert figures["repetition/penalized"] == pytest.approx(len(steps) / (2 * len(steps_of(batch))))


def test_what_the_system_broke_is_left_alone(components: Components) -> None:
    batch = shown(components)
    for trajectory in batch:
        trajectory.status = Status.INFRA_ERROR
        for step in trajectory.steps:
            step.assign_reward({"task": 7.0})
    BatchJudge(components.language.agent, weights(kind="rule", repetition_penalty=0.1), parts=WANTED).reward(
        batch
    )
    assert {step.reward for step in steps_of(batch)} == {7.0}


@pytest.mark.parametrize(
    "setting",
    [
        ("rewards.judge.kind=endpoint", "rewards.judge.endpoint={url='http://h/v1', model='m'}"),
        ("rewards.judge.repetition_penalty=0.1",),
    ],
)
def test_settings_that_need_a_batch_are_refused_where_nobody_judges_batches(setting: tuple[str, ...]) -> None:
    components = small_components(*SETTINGS, *setting)
    assert components.backend.batch_judge is not None and components.backend.player is not None
    with pytest.raises(ConfigError, match=r"whole batches"):
        LanguagePlayer(
            components.language.agent, components.language.renderer, weights=components.config.rewards
        )
