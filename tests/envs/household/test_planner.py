"""Plans are valid and shortest, from every state; the explorer uses nothing it has not seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.household.households import brute_force_length, small_household, wander
from tests.properties import examples

from stepwell.core import EnvError
from stepwell.envs.household.catalogue import TINY
from stepwell.envs.household.explorer import ExplorerNotes, choose_command
from stepwell.envs.household.goals import HouseholdGoal, is_goal_met
from stepwell.envs.household.house import House, make_first_state
from stepwell.envs.household.planner import _Problem, find_shortest_plan

seeds = st.integers(0, 2**32)


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_plans_are_valid_and_as_short_as_a_search_over_all_commands_finds(seed: int) -> None:
    rng = random.Random(seed)
    house, goal, state = small_household(rng)
    state = wander(house, state, rng, rng.choice((0, 0, 3, 8, 20)))
    plan = find_shortest_plan(house, goal, state)
    at = state
    for command in plan:
        assert not is_goal_met(house, goal, at)
        assert command in house.list_commands(at)
        at = house.apply_command(at, command)
    assert is_goal_met(house, goal, at)
    assert len(plan) == brute_force_length(house, goal, state)


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_the_bound_never_exceeds_what_is_left(seed: int) -> None:
    rng = random.Random(seed)
    house, goal, state = small_household(rng)
    state = wander(house, state, rng, rng.randrange(12))
    assert _Problem(house, goal, state).bound_remaining(state) <= brute_force_length(house, goal, state)


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_the_explorer_reaches_every_goal_by_possible_commands(seed: int) -> None:
    house, goal, state = small_household(random.Random(seed))
    notes = ExplorerNotes()
    for _ in range(40):
        notes.note_view(house, state)
        command = choose_command(house, goal, notes)
        if command is None:
            break
        assert command in house.list_commands(state)
        state = house.apply_command(state, command)
    assert is_goal_met(house, goal, state)


@given(seeds)
@settings(max_examples=examples(60), deadline=None)
def test_the_explorer_does_the_same_wherever_things_lie_that_it_has_not_seen(seed: int) -> None:
    """Two households that look alike so far: its next command is the same in both."""
    rng = random.Random(seed)
    house, goal, state = small_household(rng)
    other, notes, others_notes = state, ExplorerNotes(), ExplorerNotes()
    hidden = rng.randrange(len(state.at))
    elsewhere = [place for place in range(len(house.places)) if house.may_lie[hidden] >> place & 1]
    at = (*state.at[:hidden], rng.choice(elsewhere), *state.at[hidden + 1 :])
    other = other._replace(at=at)
    for _ in range(20):
        notes.note_view(house, state)
        others_notes.note_view(house, other)
        if hidden in notes.at or hidden in others_notes.at:
            return
        command = choose_command(house, goal, notes)
        assert command == choose_command(house, goal, others_notes)
        if command is None:
            return
        state, other = house.apply_command(state, command), house.apply_command(other, command)


def test_a_household_without_the_thing_has_no_plan() -> None:
    house = House(TINY, "hut", ("desk", "bed"), ("book",))
    with pytest.raises(EnvError, match="does not hold what it takes"):
        find_shortest_plan(house, HouseholdGoal("place", "key", "bed"), make_first_state(house, [0]))
