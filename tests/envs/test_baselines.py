"""Random play and the best blind plan: exact where it can be computed another way."""

from __future__ import annotations

import itertools

import pytest

from stepwell.core import ConfigError, InputError, Split, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import find_blind_plan, measure_random_play

SHORT = {"max_turns": 5, "max_actions_per_turn": 1}


def share_solved(name: str, options: dict, tasks: list[Task], plan: tuple[str, ...]) -> float:
    """A plan played in the environment itself, turn by turn."""
    env = make_env(name, options)
    per_turn = env.description.actions.max_per_turn
    num_solved = 0
    for task in tasks:
        env.reset(options={"task": task})
        for at in range(0, len(plan), per_turn):
            _, _, terminated, truncated, info = env.step(plan[at : at + per_turn])
            if terminated or truncated:
                num_solved += info["success"]
                break
    return num_solved / len(tasks)


@pytest.mark.slow
def test_the_best_blind_plan_is_the_best_of_all_plans() -> None:
    tasks = draw_tasks("frozenlake", SHORT, Split.TRAIN, 30, seed=0)
    names = make_env("frozenlake", SHORT).description.actions.names
    best = max(share_solved("frozenlake", SHORT, tasks, p) for p in itertools.product(names, repeat=5))
    found = find_blind_plan("frozenlake", SHORT, tasks, tasks)
    assert found.train_success == found.success == best


@pytest.mark.parametrize("name", ["frozenlake", "sokoban"])
def test_a_plan_scores_as_it_plays(name: str) -> None:
    train = draw_tasks(name, {}, Split.TRAIN, 60, seed=0)
    held_out = draw_tasks(name, {}, Split.HELD_OUT, 40, seed=1)
    found = find_blind_plan(name, {}, train, held_out, beam_width=100)
    assert len(found.actions) == 9
    assert found.train_success == share_solved(name, {}, train, found.actions)
    assert found.success == share_solved(name, {}, held_out, found.actions)
    assert found.train_success > measure_random_play(name, {}, train, seed=0)


def test_one_task_alone_has_a_perfect_blind_plan() -> None:
    task = Task("sokoban", {"room": ["######", "#PX_O#", "######"]})
    assert find_blind_plan("sokoban", {}, [task], [task], beam_width=50).success == 1.0


def test_random_play_repeats_with_its_seed_and_meets_the_exact_chance() -> None:
    # One move is enough and one of four reaches the goal: 1 - (3/4)^n over moves that never leave
    # the start otherwise; on a 1 x 2 board every other move stays in place.
    task = Task("frozenlake", {"board": ["__"], "start": [0, 0], "goal": [0, 1]})
    options = {"max_turns": 2, "max_actions_per_turn": 1}
    share = measure_random_play("frozenlake", options, [task] * 4000, seed=1)
    assert share == measure_random_play("frozenlake", options, [task] * 4000, seed=1)
    assert share == pytest.approx(1 - 0.75**2, abs=0.03)


def test_envs_with_chance_have_no_blind_plan() -> None:
    options = {"is_slippery": True}
    tasks = draw_tasks("frozenlake", options, Split.TRAIN, 2, seed=0)
    with pytest.raises(ConfigError, match="no table"):
        find_blind_plan("frozenlake", options, tasks, tasks)


def test_no_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="at least one task"):
        measure_random_play("frozenlake", {}, [], seed=0)
