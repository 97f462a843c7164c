"""Courier: what is seen, done and paid, the shortest delivery, and tasks that can be solved in time."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from stepwell.core import ConfigError, InputError, Split, StateForm, Task, TaskRelation
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import find_blind_plan, measure_random_play
from stepwell.envs.courier.town import ACTIONS, Delivery, Town, apply_action, count_actions, plan_delivery


def place_things(start: Any = (0, 0), parcel: Any = (1, 1), door: Any = (0, 2), size: Any = (3, 3)) -> Task:
    content = {"size": size, "start": start, "parcel": parcel, "door": door}
    return Task("courier", {name: list(cell) for name, cell in content.items()})


def open_town(task: Task | None = None, **options: Any) -> Any:
    env = make_env("courier", options)
    env.reset(options={"task": task or place_things()})
    return env


def test_a_delivery_is_told_in_one_line_and_pays_at_its_end_only() -> None:
    env = open_town()
    assert env.observe().text == "parcel 1 down 1 right, door 2 right"
    seen, reward, terminated, _, info = env.step(["Down", "Right", "Take"])
    assert (seen.text, reward, terminated) == ("parcel in hand, door 1 up 1 right", 0.0, False)
    assert info == {"success": False, "num_actions": 3, "process": 3.0}
    seen, reward, terminated, truncated, info = env.step(["Up", "Right", "Give"])
    assert (seen.text, reward, terminated, truncated) == ("parcel delivered, door here", 1.0, True, False)
    assert info["success"] and info["process"] == 3.0


def test_the_door_may_be_told_by_compass_and_the_parcel_is_not() -> None:
    env = open_town(door_words="compass")
    assert env.observe().text == "parcel 1 down 1 right, door 2 east"
    assert env.step(["Down", "Right", "Take"])[0].text == "parcel in hand, door 1 north 1 east"
    assert env.step(["Up", "Right", "Right"])[0].text == "parcel in hand, door here"
    away = open_town(place_things(start=(0, 2), door=(2, 0)), door_words="compass")
    assert away.observe().text == "parcel 1 down 1 left, door 2 south 2 west"


@pytest.mark.parametrize("actions", [["Take"], ["Give"], ["Up"], ["Left"]])
def test_what_cannot_be_done_here_changes_nothing(actions: list[str]) -> None:
    env = open_town()
    before = env.state()
    assert env.step(actions)[1] == 0.0
    assert env.state() == before


def test_nothing_can_be_given_at_the_door_without_the_parcel() -> None:
    env = open_town()
    assert env.step(["Right", "Right", "Give"])[2] is False
    assert env.observe().text == "parcel 1 down 1 left, door here"


def test_walking_away_is_negative_progress() -> None:
    env = open_town(place_things(start=(1, 0)))
    assert env.step(["Up"])[4]["process"] == -1.0
    assert env.step(["Left"])[4]["process"] == 0.0


def test_a_fetcher_shows_the_way_to_the_parcel_and_not_to_the_door() -> None:
    env = make_env("courier", {"oracle": "fetcher"})
    solved, wasted = [], []
    for seed in range(200):
        env.reset(seed=seed)
        turns = []
        while not (turns and turns[-1][2]):
            plan = env.oracle()
            assert plan == env.oracle()  # the same for the same moment
            turns.append(env.step(plan[:3]))
            if not env.now.has_parcel:
                assert turns[-1][2] or turns[-1][4]["process"] == 3.0
            elif not turns[-1][2]:
                wasted.append(turns[-1][4]["process"] < 3.0)
        solved.append(turns[-1][4]["success"])
    assert 0.25 < np.mean(solved) < 0.6 and np.mean(wasted) > 0.5


def test_states_are_drawn_told_and_listed() -> None:
    env = open_town()
    assert env.state() == {
        StateForm.NATURAL_LANGUAGE: "The parcel is below and right of the player. "
        "The door is directly right of the player.",
        StateForm.SYMBOLIC: "P_D\n_B_\n___",
        StateForm.STRUCTURED: '{"player": [0, 0], "parcel": [1, 1], "door": [0, 2], "size": [3, 3]}',
    }
    maps = []
    for action in ("Right", "Right", "Left", "Down", "Take", "Up", "Right", "Give"):
        env.step([action])
        maps.append(env.state()[StateForm.SYMBOLIC].replace("\n", "/"))
    assert maps == [
        "_PD/_B_/___", "__S/_B_/___", "_PD/_B_/___", "__D/_Q_/___",
        "__D/_H_/___", "_HD/___/___", "__*/___/___", "__*/___/___",
    ]  # fmt: skip


def test_the_plan_is_as_short_as_breadth_first_search_finds() -> None:
    cells = list(itertools.product(range(3), range(2)))
    for start, parcel, door in itertools.permutations(cells, 3):
        town = Town.from_content({"size": (3, 2), "start": start, "parcel": parcel, "door": door})
        first = Delivery(town.start)
        reached, frontier, needed = {first}, {first}, 0
        while not any(now.is_delivered for now in frontier):
            after = {apply_action(town, now, action) for now in frontier for action in ACTIONS}
            frontier, needed = after - reached, needed + 1
            reached |= frontier
        now = first
        for action in plan_delivery(town, first):
            now = apply_action(town, now, action)
        assert now.is_delivered and len(plan_delivery(town, first)) == needed == count_actions(town, first)


def test_no_task_is_made_that_cannot_be_solved_in_time() -> None:
    env = make_env("courier", {"max_turns": 2})
    lengths = {len(env.oracle()) for seed in range(100) if env.reset(seed=seed)}
    assert lengths == {4, 5, 6}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_rows": 1, "num_columns": 2}, "three blocks"),
        ({"max_turns": 1}, "the shortest delivery takes 4 actions, and there is time for 3"),
        ({"num_rows": 33}, r"env\.options\.num_rows"),
    ],
)
def test_towns_without_a_delivery_are_refused(options: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_env("courier", options)


def test_things_outside_the_town_or_in_one_place_are_refused() -> None:
    with pytest.raises(InputError, match=r"door \[0, 3\] lies outside the town of 3 x 3"):
        open_town(place_things(door=(0, 3)))
    with pytest.raises(InputError, match="three different blocks"):
        open_town(place_things(parcel=(0, 0)))


def test_variants_are_nearer_alike_or_farther() -> None:
    env, rng = make_env("courier", {}), random.Random(0)
    for seed in range(30):
        task = env.make_task(env.options, seed)
        family = int(env.name_family(task).split()[0])
        for relation, compare in (
            (TaskRelation.EASIER, int.__lt__),
            (TaskRelation.SIBLING, int.__eq__),
            (TaskRelation.HARDER, int.__gt__),
        ):
            variant = env.make_variant(env.options, task, relation, rng)
            if variant is not None:
                assert compare(int(env.name_family(variant).split()[0]), family)
    shortest = place_things(start=(0, 0), parcel=(0, 1), door=(0, 2), size=(1, 3))
    assert env.make_variant(env.options, shortest, TaskRelation.EASIER, rng) is None


def test_a_picture_shows_every_block() -> None:
    image = open_town(tile_size=16).render()
    assert image.shape == (48, 48, 3)
    assert len(np.unique(image.reshape(3, 16, 3, 16, 3).transpose(0, 2, 1, 3, 4).reshape(9, -1), axis=0)) == 4


def test_neither_luck_nor_a_blind_plan_delivers() -> None:
    tasks = draw_tasks("courier", {}, Split.HELD_OUT, 256, seed=0, held_out_share=0.4)
    train = draw_tasks("courier", {}, Split.TRAIN, 300, seed=0, held_out_share=0.4)
    assert measure_random_play("courier", {}, tasks, seed=0) < 0.04
    plan = find_blind_plan("courier", {}, train, tasks, beam_width=100)
    assert plan.success < 0.15 and len(plan.actions) == 30
