"""Episodes with tool calls, and with a memory of steps: what is told, what is recorded, that it repeats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.runs.small import played, small_components, small_config, timeless
from tests.runs.test_resume import cut_back, same

from stepwell.core import (
    FinishReason,
    Request,
    Sampled,
    Sampling,
    Split,
    Status,
    Step,
    TokenAction,
    ToolCall,
    Trajectory,
)
from stepwell.core.versions import VersionSpan
from stepwell.packing import pack
from stepwell.rollout import Job
from stepwell.rollout.episodes import Rollout
from stepwell.runs.build.components import Components
from stepwell.runs.run import train

NOTES = (
    "recipe.name=grpo",
    "env.name=tests.envs.tool_envs:Notes",
    "env.options={}",
    "engine.max_length=2048",
)
STEPS = (*NOTES, "agent.context=observation")


class Script:
    """Says the same few replies in every episode, one a turn."""

    def __init__(self, components: Components, replies: Sequence[str]) -> None:
        self.components, self.replies, self.num_said = components, replies, 0
        self.prompts: list[str] = []

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        (request,) = requests
        text = self.replies[self.num_said]
        self.num_said += 1
        template = self.components.language.renderer.template
        self.prompts.append(template.decode(request.state.prompt_ids.tolist()))  # type: ignore[union-attr]
        ids = np.array(
            [*template.encode_after(text), self.components.language.renderer.end_ids[0]], dtype=np.int32
        )
        sampling = Sampling(seed=request.params.seed, finish_reason=FinishReason.GIVEN)
        return [Sampled(TokenAction(ids, text), np.zeros(0, np.float32), sampling, VersionSpan.at(0))]


def scripted(components: Components, *replies: str) -> tuple[Script, Trajectory]:
    """One episode of the first task with these replies."""
    script = Script(components, replies)
    rollout = Rollout(components.envs, components.backend.player, script)  # type: ignore[arg-type]
    (task,) = components.tasks(Split.TRAIN, 1, 0)
    return script, rollout.run([Job(task, task.id, 1)], components.sampling_params(1.0)).trajectories[0]


def called(*names: str) -> str:
    return "".join(f"<tool_call>{ToolCall('look', {'name': name}).text}</tool_call>" for name in names)


def user_text(prompt: str) -> str:
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def prompt_ids(step: Step) -> list[int]:
    return step.state.prompt_ids.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("strategy", ["no_think", "free_think", "grounding_world_modeling"])
@pytest.mark.parametrize("context", ["dialogue", "observation"])
def test_the_oracle_calls_tools_in_the_strict_form_and_always_succeeds(strategy: str, context: str) -> None:
    components = small_components(*NOTES, f"agent.strategy={strategy}", f"agent.context={context}")
    shown = components.play_demonstrations(6, 0.0, 0)
    assert {t.status for t in shown} == {Status.SUCCESS}
    for trajectory in shown:
        assert trajectory.info["golden"] == len(trajectory.steps)
        assert [step.info["calls"] for step in trajectory.steps][-1] == ["answer"]
        assert all(set(step.info["calls"]) == {"look"} for step in trajectory.steps[:-1])  # type: ignore[arg-type]
        assert all(step.info["strict"] and step.info["num_lost"] == 0 for step in trajectory.steps)


def test_a_noisy_oracle_errs_as_random_play_does() -> None:
    shown = small_components(*NOTES).play_demonstrations(20, 0.6, 0)
    assert 0 < sum(t.status is Status.SUCCESS for t in shown) < 20
    assert all(step.info["strict"] for t in shown for step in t.steps)


def test_a_dialogue_goes_on_and_steps_begin_afresh_from_what_they_share() -> None:
    talk = max(small_components(*NOTES).play_demonstrations(6, 0.0, 0), key=lambda t: len(t.steps))
    steps = max(small_components(*STEPS).play_demonstrations(6, 0.0, 0), key=lambda t: len(t.steps))
    assert len(talk.steps) == len(steps.steps) == 4
    for before, after in zip(talk.steps, talk.steps[1:], strict=False):
        told = [*prompt_ids(before), *before.action.action_ids.tolist()]  # type: ignore[union-attr]
        assert prompt_ids(after)[: len(told)] == told
    first = prompt_ids(steps.steps[0])
    for step in steps.steps[1:]:
        ids = prompt_ids(step)
        shared = next(i for i, (a, b) in enumerate(zip(first, ids, strict=False)) if a != b)
        assert len(first) - 6 <= shared <= len(first)  # up to the end of the task's line
        assert len(ids) < len(prompt_ids(talk.steps[-1]))
    assert pack(steps.steps).num_tokens < sum(len(prompt_ids(s)) + s.num_units for s in steps.steps)


def test_steps_are_told_what_was_done_and_what_came_of_it() -> None:
    script, trajectory = scripted(
        small_components(*STEPS), called("a", "q"), "I wait.", "<answer>zz</answer>"
    )
    task = user_text(script.prompts[0])
    assert task.startswith("Begin at ") and "\n" not in task
    result = trajectory.steps[0].info["result"]
    assert user_text(script.prompts[2]).split("\n") == [
        task,
        *str(result).split("; "),
        "Done so far:",
        f'1. look(name="a"); look(name="q") -> {result}',
        "2. nothing: there is no <tool_call>...</tool_call> or <answer>...</answer>",
    ]
    assert all(prompt.count("<|im_start|>") == 3 for prompt in script.prompts)
    assert trajectory.status is Status.FAILURE


def test_in_a_dialogue_what_could_not_be_read_is_said_first() -> None:
    replies = (called("a"), '<tool_call>{"name": "dig"}</tool_call>', called(*"abcd"), "<answer>zz</answer>")
    script, trajectory = scripted(small_components(*NOTES), *replies)
    assert user_text(script.prompts[2]).split("\n")[0] == (
        "Your last reply could not be read: there is no tool 'dig'; the tools are: look, answer."
    )
    assert user_text(script.prompts[3]).split("\n")[0] == (
        "Not all of your last reply was done: 4 calls, at most 3 are made in a turn."
    )
    infos = [step.info for step in trajectory.steps]
    assert [info["calls"] for info in infos] == [["look"], [], ["look"] * 3, ["answer"]]
    assert [info["num_lost"] for info in infos] == [0, 1, 1, 0]
    assert trajectory.info["num_actions"] == 5


def test_named_envs_are_told_nothing_new() -> None:
    script, trajectory = scripted(small_components("recipe.name=grpo"), "I wait.", "I wait.")
    assert user_text(script.prompts[1]) == user_text(script.prompts[0])
    assert set(trajectory.steps[0].info) == {"actions", "parts", "strict", "problem"}
    told = {"first_observation", "last_observation"}
    assert set(trajectory.info) == {"num_actions", "seed"} | told


def test_the_template_tells_the_tools_where_it_can() -> None:
    script, _ = scripted(small_components(*NOTES), "<answer>zz</answer>")
    assert script.prompts[0].count("<tools>") == 1 and '"name": "look"' in script.prompts[0]
    assert '"name": "answer"' not in script.prompts[0]
    bare, _ = scripted(small_components(*NOTES, "agent.guide=false"), "<answer>zz</answer>")
    assert "<tools>" not in bare.prompts[0] and len(bare.prompts[0]) < len(script.prompts[0]) / 2


def test_sampled_episodes_with_a_memory_of_steps_repeat_bit_for_bit() -> None:
    components = small_components(*STEPS, "env.options={with_answer=false}")
    tasks = components.tasks(Split.TRAIN, 3, 0)
    jobs = [Job(task, task.id, 10 * i + k) for i, task in enumerate(tasks) for k in range(2)]
    rolled = []
    for _ in range(2):
        components.engine.forget()
        rolled.append(components.runner.rollout.run(jobs, components.sampling_params(1.0)).trajectories)
    assert [t.steps for t in rolled[0]] == [t.steps for t in rolled[1]]
    assert {len(t.steps) for t in rolled[0]} == {5}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["steppo", "gigpo"])
def test_a_run_with_tools_and_steps_goes_on_bit_for_bit(tmp_path: Path, recipe: str) -> None:
    start = ("warm_start.num_demos=8", "warm_start.batch_size=8", "warm_start.optimizer.learning_rate=3e-3")
    wish = (*STEPS, f"recipe.name={recipe}", "sampling.max_tokens=24", "checkpoint.every=1", *start)
    whole = train(small_config(*wish, "eval.num_tasks=2", folder=tmp_path, name="whole"))
    copy = cut_back(whole, tmp_path / "copy", 1)
    train(resume=copy)
    same(whole, copy, update=2)
    assert all("golden" in t.info for t in played(whole, 2)) and timeless(whole)
