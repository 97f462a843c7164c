"""Small random households for tests, and a search over all of their commands."""

from __future__ import annotations

import random

from stepwell.envs.household.catalogue import FAMILIES, FULL, TINY, TREATMENTS, Catalogue
from stepwell.envs.household.goals import HouseholdGoal, is_goal_met
from stepwell.envs.household.house import House, State, make_first_state

Small = tuple[House, HouseholdGoal, State]


def small_household(rng: random.Random) -> Small:
    """Up to four places and three things, with a goal that its things can meet."""
    while True:
        catalogue = rng.choice((FULL, TINY))
        family = rng.choice(FAMILIES)
        drawn = _drawn(catalogue, family, rng)
        if drawn is not None:
            return drawn


def _drawn(catalogue: Catalogue, family: str, rng: random.Random) -> Small | None:
    kind = rng.choice(sorted(name for name, thing in catalogue.things.items() if not thing.is_lamp))
    if family in TREATMENTS and family not in catalogue.things[kind].treatments:
        return None
    homes = catalogue.things[kind].homes
    lamp = rng.choice([name for name, thing in catalogue.things.items() if thing.is_lamp])
    place_kinds = [rng.choice(homes) for _ in range(rng.randint(1, 2))] + [rng.choice(homes)]
    target = lamp if family == "light" else rng.choice(place_kinds)
    if family in TREATMENTS:
        place_kinds.append(catalogue.appliances[family])
    if family == "light":
        place_kinds.append(rng.choice(catalogue.things[lamp].homes))
    rng.shuffle(place_kinds)
    places = tuple(f"{name} {number}" for number, name in enumerate(place_kinds, start=1))
    kinds = [kind] * (2 if family == "two" else rng.randint(1, 2)) + ([lamp] if family == "light" else [])
    if len(kinds) < 3:
        kinds.append(rng.choice([name for name, thing in catalogue.things.items() if not thing.is_lamp]))
    at = []
    for name in kinds:
        fitting = [p for p, place in enumerate(place_kinds) if place in catalogue.things[name].homes]
        if not fitting:
            return None
        at.append(rng.choice(fitting))
    things = tuple(f"{name} {number}" for number, name in enumerate(kinds, start=1))
    house = House(catalogue, "room", places, things)
    return house, HouseholdGoal(family, kind, target), make_first_state(house, at)  # type: ignore[arg-type]


def wander(house: House, state: State, rng: random.Random, num_commands: int) -> State:
    """Where so many random commands lead."""
    for _ in range(num_commands):
        state = house.apply_command(state, rng.choice(house.list_commands(state)))
    return state


def brute_force_length(house: House, goal: HouseholdGoal, state: State) -> int:
    """Commands to the goal at least, by breadth first search over every command there is."""
    seen, frontier, length = {state}, [state], 0
    while True:
        if any(is_goal_met(house, goal, at) for at in frontier):
            return length
        reached = set()
        for at in frontier:
            reached.update(house.apply_command(at, command) for command in house.list_commands(at))
        frontier = sorted(reached - seen)
        seen |= reached
        length += 1
        assert frontier, "the goal cannot be met"
