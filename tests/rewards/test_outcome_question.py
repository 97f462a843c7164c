"""The question about an episode: what is in it, and how it is cut to fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import ArrayAction, ArrayState, Sampling, Status, Step, Task, Trajectory
from stepwell.core.errors import InputError
from stepwell.rewards.outcome_model.question import (
    OutcomeQuestion,
    TextLimits,
    read_question,
    write_question,
)

WORDS = st.text(alphabet="ab \n", max_size=300)


def played(*actions: str, status: Status = Status.SUCCESS, instruction: str = "buy a lamp") -> Trajectory:
    steps = []
    for action in actions:
        step = Step.from_text(action, Sampling())
        step.info = {"actions": [action], "parts": {"outcome": 1.0}}
        step.assign_reward({"outcome": 1.0})
        steps.append(step)
    info = {"last_observation": "Cart: 1 lamp", "first_observation": "Shop"}
    return Trajectory(Task("shop", {"n": 1}, instruction), steps, status, info=info)


def test_it_holds_task_actions_and_the_last_view_and_not_how_it_ended() -> None:
    asked = read_question(played("click[lamp]", "click[buy]"))
    assert asked == OutcomeQuestion("buy a lamp", ("click[lamp]", "click[buy]"), "Cart: 1 lamp")
    failed = played("click[lamp]", "click[buy]", status=Status.FAILURE)
    assert read_question(failed) == asked


def test_without_an_instruction_the_first_observation_is_the_task() -> None:
    assert read_question(played("click[lamp]", instruction="")).instruction == "Shop"


def test_a_tool_call_is_one_line_and_a_result_follows() -> None:
    trajectory = played('{"name": "search", "arguments": {"query": "wells"}}')
    trajectory.steps[0].info["result"] = "20 passages\nmore"
    assert read_question(trajectory).actions == ('search(query="wells") -> 20 passages more',)


def test_a_robots_state_is_written_as_numbers_without_its_images() -> None:
    state = ArrayState(
        {"hand": np.array([0.5, 1.25]), "camera": np.zeros((64, 64, 3), np.uint8)}, "reach the ball"
    )
    step = Step(state, ArrayAction(np.array([[0.1, -0.2]]), 0), np.zeros(0, np.float32))
    asked = read_question(Trajectory(Task("reach", {}), [step], Status.FAILURE))
    assert asked == OutcomeQuestion("reach the ball", ("0.10 -0.20",), "hand: 0.500 1.250")


def test_an_episode_without_steps_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="nothing to judge"):
        read_question(played())


@given(WORDS, st.lists(WORDS, min_size=1, max_size=8), WORDS, st.integers(128, 600))
@settings(max_examples=examples(200))
def test_a_text_always_fits_and_ends_with_the_question(
    instruction: str, actions: list[str], view: str, max_tokens: int
) -> None:
    asked = OutcomeQuestion(instruction, tuple(actions), view)
    text = write_question(asked, TextLimits(max_tokens, max_tokens // 2), len)
    assert len(text) <= max_tokens
    assert text.endswith("Is the task done? YES or NO.")


def test_old_actions_are_dropped_before_the_last_view_is_cut() -> None:
    lines = tuple(f"action number {number}" for number in range(40))
    text = write_question(OutcomeQuestion("go", lines, "x" * 300), TextLimits(500, 300), len)
    assert "x" * 290 in text and "action number 39" in text and "action number 0\n" not in text
    assert "earlier left out)" in text
    short = write_question(OutcomeQuestion("go", lines[:3], "x" * 900), TextLimits(500, 300), len)
    assert all(line in short for line in lines[:3]) and "x" * 300 in short


def test_it_names_the_words_of_the_task_that_were_not_used_and_those_not_seen_either() -> None:
    asked = OutcomeQuestion("Buy a red lamp", ("search[a lamp]", "click[buy]"), "Red cup. Cart: 1")
    text = write_question(asked, TextLimits(), len)
    assert "Not in the actions: red\nNor seen at the end: \nIs" in text
    other = OutcomeQuestion("Buy a red lamp", ("search[blue cup]", "click[buy]"), "Cart: 1 cup")
    text = write_question(other, TextLimits(), len)
    assert "Not in the actions: a red lamp\nNor seen at the end: a red lamp\nIs" in text


def test_a_task_that_an_environment_repeats_in_its_observation_is_not_taken_for_seen() -> None:
    trajectory = played("click[lamp]")
    trajectory.info["last_observation"] = "Task: buy a lamp\nCart: empty"
    assert read_question(trajectory).last_view == "Task: ...\nCart: empty"


def test_limits_leave_room_for_task_and_actions() -> None:
    with pytest.raises(InputError, match="page_tokens must leave"):
        TextLimits(100, 90)


def test_a_long_action_is_cut_where_the_limits_say() -> None:
    note = f"type[{'x' * 400} lamp]"
    short, whole = read_question(played(note)), read_question(played(note), 2000)
    assert len(short.actions[0]) == TextLimits().action_chars == 240 and short.actions[0].endswith("...")
    assert whole.actions == (note,)
    limits = TextLimits(2000, 64, action_chars=2000)
    said = [write_question(each, limits, len) for each in (short, whole)]
    assert ["Not in the actions: buy a lamp" in text for text in said] == [True, False]
    with pytest.raises(InputError, match="action_chars"):
        TextLimits(action_chars=3)
