"""Generates households and goals from a seed, and assigns them to splits.

A *layout* is a room with its places. Training uses `num_layouts` layouts, which depend only on their number.
A hash of the number of places of each kind decides which layouts training may use, so an *unseen* layout
differs in these numbers from every training layout, whatever its room. Some kinds of rooms are never used in
training. Held-out tasks that are *seen* have a training layout and a goal (family, kind of thing, kind of
place) that training never has in that layout.

    train    layout of training, training goal of that layout
    seen     layout of training, held-out goal of that layout
    unseen   other layout

The training tasks are the same for both held-out sets, so one trained model can be evaluated on both.

Every task can be solved: its shortest plan is computed and leaves `spare_turns`, and no goal is met at the
start. Each thing lies in one of the homes of its kind, chosen uniformly.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from stepwell.core import JSON, ConfigError, InputError, Split, Task, hash_content
from stepwell.envs.fixed_splits import assign_split
from stepwell.envs.household.catalogue import CATALOGUES, FAMILIES, TREATMENTS, Catalogue, Family
from stepwell.envs.household.goals import HouseholdGoal, is_goal_met, write_instruction
from stepwell.envs.household.house import House, State, find_kind, make_first_state
from stepwell.envs.household.options import HouseholdOptions
from stepwell.envs.household.planner import find_shortest_plan

UNSEEN_LAYOUTS, SEEN_GOALS = 0.3, 0.2  # held-out shares of all layouts, and of the goals of a layout
MAX_ATTEMPTS = 2000


class HouseLayout(NamedTuple):
    """A room and its places."""

    room: str
    places: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of places of each kind."""
        return dict(Counter(find_kind(place) for place in self.places))


def make_task(env: str, options: HouseholdOptions, seed: int) -> Task:
    """The task of a seed, with its split."""
    rng = random.Random(seed)
    unseen = options.held_out == "unseen"
    is_other = unseen and rng.random() < SEEN_GOALS
    family = rng.choice(options.families)
    for _ in range(MAX_ATTEMPTS):
        layout = (
            _draw_other_layout(options.size, rng) if is_other else _draw_trained_layout(options, family, rng)
        )
        goal = _draw_goal(options.catalogue, layout, family, rng)
        if goal is None:
            continue
        is_new = is_other or is_held_out_goal(layout, goal)
        if unseen and is_new and not is_other:
            continue
        task = make_goal_task(env, options, layout, goal, rng, "unseen" if is_other else "")
        if task is not None:
            return replace(task, seed=seed)
    raise ConfigError(
        f"env.options leave no room for a task of the family {family!r} within {options.longest} turns; "
        "raise max_turns, lower spare_turns, or raise num_layouts"
    )


def make_goal_task(
    env: str,
    options: HouseholdOptions,
    layout: HouseLayout,
    goal: HouseholdGoal,
    rng: random.Random,
    side: str = "",
) -> Task | None:
    """A task with this goal, things placed by chance; None if it cannot be reached in time.

    `side` is "unseen" for a layout that training never has; otherwise the goal decides the split.
    """
    things = _place_things(options, layout, goal, rng)
    if things is None:
        return None
    side = side or ("seen" if is_held_out_goal(layout, goal) else "train")
    catalogue = options.catalogue
    text = write_instruction(goal, rng.randrange(catalogue.num_wordings), is_terse=catalogue.is_terse)
    content = _make_content(options.size, layout, goal, things)
    task = Task(env, content, text, tags=(goal.family, layout.room, side))
    return assign_split(task, Split.TRAIN if side == "train" else Split.HELD_OUT)


def list_trained_goals(options: HouseholdOptions, layout: HouseLayout, family: Family) -> list[HouseholdGoal]:
    """The goals of a family that training has in a layout."""
    goals = _list_goals(options.catalogue, layout, family)
    return [goal for goal in goals if not is_held_out_goal(layout, goal)]


def read_household(content: Mapping[str, Any]) -> tuple[House, HouseholdGoal, State]:
    """The household, goal and first state of a task's content; an `InputError` if it is invalid."""
    try:
        catalogue = CATALOGUES[content["size"]]
        places, things = tuple(map(str, content["places"])), dict(content["things"])
        goal = HouseholdGoal(*(str(content["goal"][name]) for name in HouseholdGoal._fields))  # type: ignore[arg-type]
        house = House(catalogue, str(content["room"]), places, tuple(things))
        number = {name: place for place, name in enumerate(places)}
        state = make_first_state(house, [number[place] for place in things.values()])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            "a task of household holds a known 'size', a 'room', 'places', 'things' (name -> place) of known "
            f"kinds, and a 'goal' with family, thing and place; this one does not: {error!r}"
        ) from None
    unfit = [thing for thing, place in enumerate(state.at) if not house.may_lie[thing] >> place & 1]
    if unfit or goal.family not in FAMILIES:
        wrong = f"{things} has things where they may not lie" if unfit else f"no family {goal.family!r}"
        raise InputError(f"a task of household: {wrong}")
    return house, goal, state


def is_held_out_goal(layout: HouseLayout, goal: HouseholdGoal) -> bool:
    """Whether training never uses this goal in this layout."""
    return _hash_to_share(["goal", layout.room, layout.counts, list(goal)]) < SEEN_GOALS


def is_unseen_layout(counts: Mapping[str, int]) -> bool:
    """Whether training never uses these numbers of places."""
    return _hash_to_share(["layout", dict(counts)]) < UNSEEN_LAYOUTS


@lru_cache(maxsize=16)
def make_trained_layouts(size: str, num_layouts: int) -> tuple[HouseLayout, ...]:
    """The layouts of training, by number."""
    return tuple(
        _draw_layout(size, random.Random(f"{size} layout {number}"), False) for number in range(num_layouts)
    )


@lru_cache(maxsize=64)
def _find_layouts(size: str, num_layouts: int, family: Family) -> tuple[HouseLayout, ...]:
    """The training layouts in which a family has goals."""
    layouts = make_trained_layouts(size, num_layouts)
    return tuple(layout for layout in layouts if _list_goals(CATALOGUES[size], layout, family))


def _draw_trained_layout(options: HouseholdOptions, family: Family, rng: random.Random) -> HouseLayout:
    layouts = _find_layouts(options.size, options.num_layouts, family)
    if not layouts:
        raise ConfigError(
            f"none of {options.num_layouts} layouts has a task of the family {family!r}; raise "
            "env.options.num_layouts"
        )
    return rng.choice(layouts)


def _draw_other_layout(size: str, rng: random.Random) -> HouseLayout:
    return _draw_layout(size, rng, True)


def _draw_layout(size: str, rng: random.Random, is_unseen: bool) -> HouseLayout:
    catalogue = CATALOGUES[size]
    rooms = [name for name, room in catalogue.rooms.items() if is_unseen or room.is_trained]
    for _ in range(MAX_ATTEMPTS):
        name = rng.choice(rooms)
        counts = {kind: rng.randint(*limits) for kind, limits in catalogue.rooms[name].places.items()}
        counts = {kind: count for kind, count in counts.items() if count}
        least, most = catalogue.num_places
        if least <= sum(counts.values()) <= most and is_unseen_layout(counts) == is_unseen:
            return HouseLayout(name, _number_names(catalogue, counts))
    raise AssertionError("a catalogue without layouts for both sides")


def _list_goals(catalogue: Catalogue, layout: HouseLayout, family: Family) -> list[HouseholdGoal]:
    """All possible goals of a family in a layout."""
    present = layout.counts
    if family in TREATMENTS and catalogue.appliances[family] not in present:
        return []
    kinds = {
        kind: [home for home in thing.homes if home in present] for kind, thing in catalogue.things.items()
    }
    lamps = [kind for kind, homes in kinds.items() if catalogue.things[kind].is_lamp and homes]
    found = []
    for kind, homes in kinds.items():
        if not homes or catalogue.things[kind].is_lamp:
            continue
        if family == "light":
            found += [HouseholdGoal(family, kind, lamp) for lamp in lamps]
        elif family not in TREATMENTS:
            found += [HouseholdGoal(family, kind, home) for home in homes if len(homes) > 1]
        elif family in catalogue.things[kind].treatments:
            found += [
                HouseholdGoal(family, kind, home) for home in homes if home != catalogue.appliances[family]
            ]
    return found


def _draw_goal(
    catalogue: Catalogue, layout: HouseLayout, family: Family, rng: random.Random
) -> HouseholdGoal | None:
    """A goal of a family, with uniformly chosen kinds of things."""
    goals = _list_goals(catalogue, layout, family)
    if not goals:
        return None
    kind = rng.choice(sorted({goal.thing for goal in goals}))
    return rng.choice([goal for goal in goals if goal.thing == kind])


def _place_things(
    options: HouseholdOptions, layout: HouseLayout, goal: HouseholdGoal, rng: random.Random
) -> dict[str, str] | None:
    """Place the things so that the goal is not met yet but reachable in time; None if that fails."""
    catalogue = options.catalogue
    homes = {
        kind: [place for place in layout.places if find_kind(place) in thing.homes]
        for kind, thing in catalogue.things.items()
    }
    least, most = catalogue.num_things
    others = sorted({kind for kind in homes if homes[kind]} - {goal.thing, goal.place})
    drawn = rng.sample(others, min(rng.randint(least, most), len(others)))
    counts = {kind: rng.choice((1, 1, 2)) if catalogue.numbers_all else 1 for kind in drawn}
    counts[goal.thing] = goal.num_things + rng.choice((0, 0, 1))
    if goal.family == "light":
        counts[goal.place] = 1
    names = _number_names(catalogue, counts)
    lying = {name: rng.choice(homes[find_kind(name)]) for name in sorted(names)}
    house, goal, state = read_household(_make_content(options.size, layout, goal, lying))
    if is_goal_met(house, goal, state) or len(find_shortest_plan(house, goal, state)) > options.longest:
        return None
    return lying


def _number_names(catalogue: Catalogue, counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(
        f"{kind} {number}" if catalogue.numbers_all or count > 1 else kind
        for kind, count in counts.items()
        for number in range(1, count + 1)
    )


def _make_content(
    size: str, layout: HouseLayout, goal: HouseholdGoal, things: Mapping[str, str]
) -> dict[str, JSON]:
    places: Sequence[JSON] = layout.places
    return {
        "size": size,
        "room": layout.room,
        "places": list(places),
        "things": dict(things),
        "goal": dict(goal._asdict()),
    }


def _hash_to_share(value: JSON | list[Any]) -> float:
    """A number from 0 to 1 that depends only on a value."""
    return int(hash_content(value)[:12], 16) / 16**12
