"""What a prompt holds of earlier turns: a window, or a summary that the policy writes itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollout.test_tool_episodes import NOTES, called, prompt_ids, scripted, user_text
from tests.runs.small import played, small_components, small_config
from tests.runs.test_resume import cut_back, same

from stepwell.agents.agent import SUMMARY_HEAD, SUMMARY_REQUEST
from stepwell.core import ImageStore, Sampling, Split, Status, Step
from stepwell.rewards.chat_client import ChatReply
from stepwell.rollout import Job
from stepwell.rollout.chat_messages import read_outside_reply
from stepwell.rollout.chat_player import ChatPlayer
from stepwell.runs.build.components import Components
from stepwell.runs.run import train

LONG = (*NOTES, "env.options={max_turns=6}", "engine.max_length=4096")


@cache
def components(context: str, turns: int) -> Components:
    return small_components(*LONG, f"agent.context={context}", f"agent.context_turns={turns}")


def extends(before: Step, after: Step) -> bool:
    told = [*prompt_ids(before), *before.action.action_ids.tolist()]  # type: ignore[union-attr]
    return prompt_ids(after)[: len(told)] == told


def user_texts(prompt: str) -> list[str]:
    return [part.partition("<|im_end|>")[0] for part in prompt.split("<|im_start|>user\n")[1:]]


def test_a_window_holds_the_last_turns_and_the_present_observation() -> None:
    replies = [called(name) for name in "abcde"]
    whole, _ = scripted(components("dialogue", 4), *replies, called("f"))
    told = [user_text(prompt) for prompt in whole.prompts]
    script, trajectory = scripted(components("window", 2), *replies, called("f"))
    assert [user_texts(prompt) for prompt in script.prompts] == [
        told[max(0, n - 2) : n + 1] for n in range(6)
    ]
    assert [prompt.count("<|im_start|>assistant\n<tool") for prompt in script.prompts] == [0, 1, 2, 2, 2, 2]
    steps = trajectory.steps
    assert [extends(a, b) for a, b in itertools.pairwise(steps)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    system = script.prompts[0].partition("<|im_start|>user")[0]
    assert all(prompt.startswith(system) for prompt in script.prompts)


def test_a_summary_replaces_the_turns_before_it() -> None:
    replies = [called("a"), called("b"), " I read a and b. ", called("c"), called("d"), "All read."]
    script, trajectory = scripted(components("summary", 2), *replies, called("e"), "<answer>zz</answer>")
    steps = trajectory.steps
    assert [step.is_summary for step in steps] == [False, False, True, False, False, True, False, False]
    assert trajectory.num_turns == 6 and trajectory.status is Status.FAILURE
    assert steps[2].info["summary"] == "I read a and b." and steps[2].reward == 0.0
    assert trajectory.info["num_actions"] == 6
    asked = user_texts(script.prompts[2])
    assert len(asked) == 3 and asked[-1].endswith(f"\n{SUMMARY_REQUEST}")
    observation = asked[-1].removesuffix(f"\n{SUMMARY_REQUEST}")
    assert user_texts(script.prompts[3]) == [f"{SUMMARY_HEAD}\nI read a and b.\n{observation}"]
    assert "I read a and b." in script.prompts[5] and "I read a and b." not in script.prompts[6]
    continued = [extends(a, b) for a, b in itertools.pairwise(steps)]
    assert continued == [True, True, False, True, True, False, True]


replies = st.lists(
    st.sampled_from([called("a"), called("b", "q"), "I wait.", "", "<answer>", "<think>x</think>y\n"]),
    min_size=12,
    max_size=12,
)


@settings(max_examples=20)
@given(st.sampled_from(["dialogue", "observation", "window", "summary"]), st.integers(1, 3), replies)
def test_prompts_continue_exactly_or_begin_anew_with_what_is_kept(
    context: str, turns: int, said: Sequence[str]
) -> None:
    script, trajectory = scripted(components(context, turns), *said)
    steps = trajectory.steps
    assert trajectory.num_turns == 6
    assert sum(step.is_summary for step in steps) == ((6 - 1) // turns if context == "summary" else 0)
    for number, (step, prompt) in enumerate(zip(steps, script.prompts, strict=True)):
        num_past = len(user_texts(prompt)) - 1
        goes_on = number > 0 and extends(steps[number - 1], step)
        if context == "dialogue":
            assert (goes_on or number == 0) and num_past == number
        elif context == "observation":
            assert not goes_on and num_past == 0
        else:
            assert num_past <= turns
            is_new = steps[number - 1].is_summary if context == "summary" else number > turns
            assert goes_on != (is_new or number == 0)
    assert all(step.reward == 0.0 for step in steps if step.is_summary)


@pytest.mark.parametrize(("context", "turns"), [("window", 1), ("summary", 1), ("summary", 2)])
def test_the_oracle_succeeds_and_lists_what_was_done_where_a_summary_is_asked_for(
    context: str, turns: int
) -> None:
    for trajectory in components(context, turns).play_demonstrations(6, 0.0, 0):
        assert trajectory.status is Status.SUCCESS and trajectory.info["golden"] == trajectory.num_turns
        for step in trajectory.steps:
            if step.is_summary:
                assert str(step.info["summary"]).startswith("Done so far:\n1. look(")


@pytest.mark.slow
@pytest.mark.parametrize("context", ["window", "summary"])
def test_a_run_with_a_rewritten_history_goes_on_bit_for_bit(tmp_path: Path, context: str) -> None:
    world = "env.options={max_turns=3, with_answer=false}"  # no reply of an unskilled model ends an episode
    wish = (*LONG, world, f"agent.context={context}", "agent.context_turns=1", "recipe.name=steppo")
    short = ("sampling.max_tokens=8", "checkpoint.every=1", "eval.num_tasks=2", "train.tasks_per_update=2")
    whole = train(small_config(*wish, *short, folder=tmp_path, name="whole"))
    copy = cut_back(whole, tmp_path / "copy", 1)
    train(resume=copy)
    same(whole, copy, update=2)
    learnt = [step for t in played(whole, 2) for step in t.steps]
    assert sum(step.is_summary for step in learnt) == (8 if context == "summary" else 0)


@pytest.mark.parametrize("context", ["dialogue", "window", "summary"])
def test_an_outside_model_gets_every_result_with_its_call(context: str) -> None:
    parts = components(context, 2)
    player = ChatPlayer(parts.language.agent, ImageStore())
    (task,) = parts.tasks(Split.TRAIN, 1, 0)
    (turn,) = parts.envs.reset([task])
    episode = player.begin_episode(0, Job(task, task.id, 1), turn)
    sizes = []
    while episode.status is None:
        messages = episode.own.messages
        sizes.append(sum(message.role == "assistant" for message in messages))
        for before, after in itertools.pairwise(messages):
            calls = [call.id for call in before.tool_calls]
            assert (after.tool_call_id or "") in (calls or [""])
            assert (after.role == "tool") == bool(calls)
        request = player.make_request(episode, parts.sampling_params(1.0))
        function = {"name": "look", "arguments": '{"name": "a"}'}
        said = {"content": "", "tool_calls": [{"id": f"c{len(episode.steps)}", "function": function}]}
        reply = read_outside_reply(ChatReply(said, "stop"), Sampling())
        if not player.record_summary(episode, request, reply):
            read = player.read_reply(reply)
            (turn,) = parts.envs.step([0], [read.actions])
            player.record_step(episode, request, reply, read, turn)
    wanted = {
        "dialogue": [0, 1, 2, 3, 4, 5],
        "window": [0, 1, 2, 2, 2, 2],
        "summary": [0, 1, 2, 0, 1, 2, 0, 1],
    }
    assert sizes == wanted[context]
