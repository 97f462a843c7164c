"""Tasks: solvable in time, the same everywhere, on the side of the wall that layout and goal say."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from stepwell.core import ConfigError, InputError, Split, Task
from stepwell.envs import draw_tasks, read_options
from stepwell.envs.household.env import Household
from stepwell.envs.household.generator import (
    HouseLayout,
    is_held_out_goal,
    is_unseen_layout,
    make_trained_layouts,
    read_household,
)
from stepwell.envs.household.goals import is_goal_met
from stepwell.envs.household.planner import find_shortest_plan

NAME = "household"
SIZES = pytest.mark.parametrize("size", ["tiny", "full"])


@cache
def tasks_of(size: str, held_out: str, count: int = 150) -> tuple[Task, ...]:
    options = read_options(NAME, {"size": size, "held_out": held_out})
    return tuple(Household.make_task(options, seed) for seed in range(count))


def layout_of(task: Task) -> HouseLayout:
    return HouseLayout(str(task.content["room"]), tuple(task.content["places"]))  # type: ignore[arg-type]


@SIZES
@pytest.mark.parametrize("held_out", ["seen", "unseen"])
def test_tasks_are_unsolved_at_first_and_solvable_with_turns_to_spare(size: str, held_out: str) -> None:
    longest = read_options(NAME, {"size": size}).longest  # type: ignore[attr-defined]
    for task in tasks_of(size, held_out)[:60]:
        house, goal, state = read_household(task.content)
        assert not is_goal_met(house, goal, state)
        assert 3 <= len(find_shortest_plan(house, goal, state)) <= longest


@SIZES
def test_layouts_and_goals_of_held_out_tasks_never_occur_in_training(size: str) -> None:
    layouts = set(make_trained_layouts(size, 60))
    for held_out in ("seen", "unseen"):
        for task in tasks_of(size, held_out):
            layout, goal = layout_of(task), read_household(task.content)[1]
            side = task.tags[2]
            assert side in ("train", held_out)
            assert task.split(0.2) == task.split(0.05) == (Split.TRAIN if side == "train" else Split.HELD_OUT)
            assert (layout in layouts) == (side != "unseen") == (not is_unseen_layout(layout.counts))
            if side != "unseen":
                assert is_held_out_goal(layout, goal) == (side == "seen")


def test_unseen_tasks_have_rooms_that_training_never_has() -> None:
    rooms = {
        side: {t.tags[1] for t in tasks_of("full", "unseen") if t.tags[2] == side}
        for side in ("train", "unseen")
    }
    assert rooms["train"] == {"kitchen", "bedroom", "bathroom", "livingroom"}
    assert rooms["unseen"] & {"studio", "office", "laundryroom", "diningroom"}


def test_families_are_drawn_alike_and_tasks_are_many() -> None:
    counts = Counter(task.tags[0] for task in tasks_of("full", "seen"))
    assert set(counts) == {"place", "light", "clean", "heat", "cool", "two"} and min(counts.values()) >= 12
    assert len(draw_tasks(NAME, {"size": "tiny"}, Split.HELD_OUT, 50, seed=3)) == 50


def test_tasks_are_the_same_on_every_machine() -> None:
    options = read_options(NAME, {"size": "tiny"})
    task = Household.make_task(options, 7)
    assert task == Household.make_task(options, 7)
    assert (task.id, task.instruction) == (
        "00a8c3e6c7ca002504d78d61d1a495df",
        "clean plate put in bed",
    )


def test_options_that_leave_no_task_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the shortest ones take 4"):
        read_options(NAME, {"max_turns": 5, "spare_turns": 2})
    with pytest.raises(ConfigError, match="named twice"):
        read_options(NAME, {"families": ["heat", "heat"]})
    options = read_options(NAME, {"size": "tiny", "families": ["heat"], "max_turns": 5, "spare_turns": 1})
    with pytest.raises(ConfigError, match="no room for a task of the family 'heat' within 4 turns"):
        Household.make_task(options, 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"size": "huge"}, "known 'size'"),
        ({"things": {"book": "moon"}}, "moon"),
        ({"things": {"unicorn": "bed"}}, "unicorn"),
        ({"goal": {"family": "place"}}, "'goal' with family"),
        ({"goal": {"family": "burn", "thing": "book", "place": "bed"}}, "no family 'burn'"),
        ({"things": {"egg": "bed"}}, "may not lie"),
    ],
)
def test_a_task_that_is_no_household_is_refused_with_what_is_wrong(
    change: dict[str, object], problem: str
) -> None:
    content: dict[str, object] = {
        "size": "tiny",
        "room": "hut",
        "places": ["bed", "desk"],
        "things": {"book": "desk"},
        "goal": {"family": "place", "thing": "book", "place": "bed"},
    }
    read_household(content)
    with pytest.raises(InputError, match=problem):
        read_household(content | change)
