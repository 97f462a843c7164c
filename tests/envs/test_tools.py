"""Environments with tools keep the contract: calls are actions, mistakes are observations."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from tests.envs.tool_envs import Notes

from stepwell.core import InputError, Task, ToolCall
from stepwell.envs import make_env
from stepwell.envs.baselines import draw_random_turn
from stepwell.envs.remote.wire import read_description, write_description

TASK = Task("notes", {"chains": [["a", "b", "c"], ["d", "e"]]})


def look(name: str) -> str:
    return ToolCall("look", {"name": name}).text


def started() -> Notes:
    env = Notes()
    env.reset(options={"task": TASK})
    return env


def test_calls_of_one_turn_are_made_together_and_those_of_the_last_are_forgotten() -> None:
    env = started()
    observation, reward, terminated, _, info = env.step([look("a"), look("d"), look("z")])
    assert observation.text == "Begin at a and d.\na: b\nd: e\nz: no note"
    assert (reward, terminated, info["num_actions"]) == (0.2, False, 3)
    assert env.step([look("b")])[0].text == "Begin at a and d.\nb: c"
    with pytest.raises(InputError, match="at most 3"):
        env.step([look("a")] * 4)


def test_calls_that_cannot_be_made_are_observations() -> None:
    turn = started().step(["{", ToolCall("dig", {}).text, look("x" * 99)])
    assert turn[0].text.splitlines()[2:] == [
        "Not done: there is no tool 'dig'; the tools are: look, answer.",
        "Not done: look: argument 'name' is 99 characters long, at most 20 are allowed.",
    ]
    assert not turn[2]


def test_reset_tells_the_turns_of_the_shortest_plan_where_the_env_says_so() -> None:
    env = Notes()
    assert env.reset(options={"task": TASK})[1] == {"golden": 3}
    assert make_env("frozenlake").reset(seed=0)[1] == {}


def test_the_oracle_plays_in_as_many_turns_as_the_golden_plan() -> None:
    env = Notes()
    for seed in range(20):
        golden = env.reset(seed=seed)[1]["golden"]
        turns = []
        while not turns or not turns[-1][2]:
            turns.append(env.step(env.oracle()))
        assert len(turns) == golden and turns[-1][4]["success"]


def test_golden_steps_come_from_the_oracle_by_default() -> None:
    env = make_env("frozenlake", {"max_actions_per_turn": 3})
    task = Task("frozenlake", {"board": ["______"], "start": [0, 0], "goal": [0, 5]})
    env.reset(options={"task": task})
    assert (len(env.oracle()), env.golden_steps()) == (5, 2)


def test_where_there_is_chance_no_plan_is_golden() -> None:
    env = make_env("frozenlake", {"is_slippery": True})
    env.reset(seed=0)
    assert env.golden_steps() is None


def test_random_play_is_the_envs_own_or_any_of_its_names() -> None:
    rng = random.Random(0)
    env = started()
    assert {ToolCall("look", {"name": "b"}).text} < {env.random_action(rng) for _ in range(500)}
    lake = make_env("frozenlake")
    assert {lake.random_action(rng) for _ in range(100)} == set(lake.description.actions.names)
    assert draw_random_turn(lake, random.Random(3), 4) == random.Random(3).choices(
        lake.description.actions.names, k=4
    )


def test_an_env_with_tools_crosses_the_wire() -> None:
    description = replace(Notes().description, history_line_chars=900)
    assert read_description(write_description(description)) == description


@pytest.mark.parametrize("name", ["frozenlake", "sokoban", "navigation", "primitive_skill"])
def test_what_a_judge_must_know_crosses_the_wire(name: str) -> None:
    description = make_env(name).description
    assert description.vocabulary is not None
    assert read_description(json.loads(json.dumps(write_description(description)))) == description
