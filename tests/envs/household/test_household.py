"""The environment as agents meet it: observations, commands read kindly, refusals with a reason, success."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import InputError, StateForm, Task
from stepwell.envs.baselines import measure_random_play
from stepwell.envs.check import check_type
from stepwell.envs.household.env import Household
from stepwell.envs.household.generated_household import read_command
from stepwell.envs.household.options import HouseholdOptions

NAME = "household"
CONTENT: dict[str, Any] = {
    "size": "full",
    "room": "kitchen",
    "places": ["cabinet 1", "countertop 1", "microwave 1"],
    "things": {"mug 1": "cabinet 1", "apple 1": "countertop 1"},
    "goal": {"family": "heat", "thing": "mug", "place": "countertop"},
}
HOT_MUG = Task("household", CONTENT, "put a hot mug in/on the countertop")


def started(task: Task = HOT_MUG, **options: Any) -> Household:
    env = Household(HouseholdOptions(**options))
    env.reset(options={"task": task})
    return env


def text_after(*commands: str) -> str:
    env = started()
    for command in commands:
        env.step([command])
    return env.observe().text


@pytest.mark.parametrize(
    "options", [{"size": "tiny"}, {"size": "full"}, {"size": "tiny", "held_out": "unseen"}]
)
def test_the_env_keeps_the_contract(options: dict[str, Any]) -> None:
    report = check_type(Household, HouseholdOptions(**options), num_tasks=20, min_turns_per_s=20)
    assert report.ok, str(report)


def test_the_first_observation_names_task_room_and_commands() -> None:
    assert text_after() == (
        "Task: put a hot mug in/on the countertop.\n"
        "You are in the middle of the kitchen.\n"
        "You hold: nothing.\n"
        "Commands: go to cabinet 1, go to countertop 1, go to microwave 1, look, inventory"
    )


def test_an_observation_tells_result_view_hand_and_commands() -> None:
    assert text_after("go to cabinet 1", "open cabinet 1", "take mug 1 from cabinet 1") == (
        "Task: put a hot mug in/on the countertop.\n"
        "You take the mug 1 from the cabinet 1.\n"
        "You are at the cabinet 1. It is open. You see: nothing.\n"
        "You hold: mug 1.\n"
        "Commands: go to countertop 1, go to microwave 1, close cabinet 1, move mug 1 to cabinet 1, "
        "examine cabinet 1, examine mug 1, look, inventory"
    )


def test_the_way_to_the_goal_is_rewarded_once_at_its_end() -> None:
    env = started()
    plan = env.oracle()
    assert plan == [
        "go to cabinet 1",
        "open cabinet 1",
        "take mug 1 from cabinet 1",
        "go to microwave 1",
        "heat mug 1 with microwave 1",
        "go to countertop 1",
        "move mug 1 to countertop 1",
    ]
    turns = [env.step([command])[1:] for command in plan]
    assert [turn[0] for turn in turns] == [0.0] * 6 + [1.0]
    assert turns[-1][1:] == (True, False, {"success": True, "num_actions": 1})


def test_reset_tells_the_golden_steps_and_twenty_turns_end_it() -> None:
    env = Household()
    _, info = env.reset(options={"task": HOT_MUG})
    assert info == {"golden": 7}
    turns = [env.step(["look"]) for _ in range(20)]
    assert [turn[2] for turn in turns] == [False] * 19 + [True]
    assert turns[-1][1] == 0.0 and turns[-1][4]["success"] is False


@pytest.mark.parametrize(
    ("before", "written", "reason"),
    [
        ((), "", "The command is empty."),
        ((), "dance on table", "There is no command 'dance on table'"),
        ((), "go to moon 7", "'go to moon 7' names nothing that is here"),
        (("go to cabinet 1",), "go to cabinet 1", "You are at the cabinet 1 already."),
        ((), "open cabinet 1", "You are not at the cabinet 1."),
        (("go to countertop 1",), "open countertop 1", "The countertop 1 cannot be opened or closed."),
        (("go to cabinet 1",), "close cabinet 1", "The cabinet 1 is closed already."),
        (("go to cabinet 1",), "take mug 1 from cabinet 1", "The cabinet 1 is closed."),
        (("go to countertop 1",), "take mug 1 from countertop 1", "That is not here to be taken."),
        (("go to microwave 1",), "heat mug 1 with microwave 1", "You do not hold that."),
        ((), "examine mug 1", "'examine mug 1' names nothing that is here"),  # it is, but has not been seen
        (
            ("go to countertop 1", "take apple 1 from countertop 1", "go to cabinet 1", "open cabinet 1"),
            "take mug 1 from cabinet 1",
            "Your hand is full.",
        ),
    ],
)
def test_what_cannot_be_done_does_nothing_and_says_why(
    before: tuple[str, ...], written: str, reason: str
) -> None:
    env = started()
    for command in before:
        env.step([command])
    truth, commands = env.state(), env.game.list_commands()
    observation, reward, terminated, _, _ = env.step([written])
    assert observation.text.split("\n")[1].startswith(f"Nothing happens. {reason}")
    assert (reward, terminated, env.state(), env.game.list_commands()) == (0.0, False, truth, commands)


@pytest.mark.parametrize("written", ["GO TO  cabinet 1", " go to cabinet 1.", "go to cabinet 1\n"])
def test_case_blanks_and_a_full_stop_do_not_matter(written: str) -> None:
    assert text_after(written) == text_after("go to cabinet 1")


def test_put_is_another_word_for_move() -> None:
    way = ("go to countertop 1", "take apple 1 from countertop 1")
    moved = text_after(*way, "move apple 1 to countertop 1")
    for word in ("in/on", "on", "in", "onto the"):
        assert text_after(*way, f"put apple 1 {word} countertop 1") == moved


@given(st.text(max_size=400))
def test_any_text_that_is_no_command_changes_nothing(text: str) -> None:
    env = started()
    truth, commands = env.state(), env.game.list_commands()
    observation, reward, terminated, _, _ = env.step([text])
    if read_command(text) not in commands:
        assert env.state() == truth
    assert (reward, terminated) == (0.0, False) and len(observation.text) < 800


def test_huge_texts_and_broken_unicode_are_refused_in_a_short_sentence() -> None:
    env = started()
    for text in (
        "go to " * 1_000_000,
        "\ud800",
        "\x00" * 50,
        "take mug 1 from cabinet 1; drop table",
        "🏠" * 300,
    ):
        observation = env.step([text])[0]
        assert "Nothing happens." in observation.text and len(observation.text) < 500
        observation.text.encode()


def test_oracle_solves_everything_held_out_and_random_play_next_to_nothing() -> None:
    for options in ({"size": "tiny"}, {"size": "full", "held_out": "unseen"}):
        settings = HouseholdOptions(**options)  # type: ignore[arg-type]
        tasks = [Household.make_task(settings, seed) for seed in range(60)]
        assert measure_random_play(NAME, options, tasks, seed=0) < 0.1
        env = Household(settings)
        for task in tasks:
            env.reset(options={"task": task})
            for command in env.oracle():
                info = env.step([command])[4]
            assert info["success"] is True


def test_the_explorer_solves_most_tasks_without_knowing_where_things_are() -> None:
    settings = HouseholdOptions(size="full", oracle="explorer")
    env, wins = Household(settings), 0
    for seed in range(60):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, over, _, info = env.step(env.oracle())
        wins += bool(info["success"])
    assert wins >= 54


def test_golden_steps_are_those_of_the_plan_even_when_the_explorer_demonstrates() -> None:
    env = started(oracle="explorer")
    assert env.golden_steps() == 7 and len(env.oracle()) == 1


def test_the_truth_tells_where_everything_is() -> None:
    env = started()
    state = env.state()
    assert "The closed cabinet 1 has mug 1." in state[StateForm.NATURAL_LANGUAGE]
    told = json.loads(state[StateForm.STRUCTURED])
    assert told["places"]["countertop 1"] == ["apple 1"] and told["at"] is None and told["open"] == []


def test_tiny_observations_are_short_and_have_no_idle_commands() -> None:
    env, rng = Household(HouseholdOptions(size="tiny")), random.Random(0)
    for seed in range(30):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            assert len(observation.text.encode()) < 260
            assert not {"look", "inventory", "examine", "close"} & {
                c.split()[0] for c in env.game.list_commands()
            }
            observation, _, over, _, _ = env.step([env.random_action(rng)])


def test_an_env_without_a_task_says_so() -> None:
    with pytest.raises(InputError, match="call reset first"):
        Household().observe()
