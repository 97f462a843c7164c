"""The world model: what is possible, what it does, and what never changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.household.households import small_household

from stepwell.envs.household.catalogue import CATALOGUES, FULL, TINY, Catalogue
from stepwell.envs.household.goals import HouseholdGoal, is_goal_met, write_instruction
from stepwell.envs.household.house import COOL, HOT, Command, House, State, make_first_state

seeds = st.integers(0, 2**32)
KITCHEN = House(
    FULL,
    "kitchen",
    ("cabinet 1", "countertop 1", "fridge 1", "microwave 1", "sinkbasin 1", "stoveburner 1"),
    ("apple 1", "mug 1", "mug 2"),
)
START = make_first_state(KITCHEN, [1, 0, 2])


def texts(house: House, state: State) -> list[str]:
    return [house.write_command(command) for command in house.list_commands(state)]


def played(*commands: str, house: House = KITCHEN, state: State = START) -> State:
    for text in commands:
        state = house.apply_command(
            state, dict(zip(texts(house, state), house.list_commands(state), strict=True))[text]
        )
    return state


@given(seeds)
def test_every_thing_is_in_exactly_one_place_or_in_the_hand(seed: int) -> None:
    rng = random.Random(seed)
    house, _, state = small_household(rng)
    for _ in range(30):
        command = rng.choice(house.list_commands(state))
        before, state = state, house.apply_command(state, command)
        in_hand = [thing for thing, place in enumerate(state.at) if place < 0]
        assert in_hand == ([state.held] if state.held >= 0 else [])
        assert all(house.may_lie[thing] >> place & 1 for thing, place in enumerate(state.at) if place >= 0)
        moved = [thing for thing in range(len(state.at)) if state.at[thing] != before.at[thing]]
        assert moved == ([command.thing] if command.verb in ("take", "move") else [])


@given(seeds)
def test_commands_have_distinct_texts_and_only_idle_ones_or_repetitions_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    house, _, state = small_household(rng)
    for _ in range(20):
        commands = house.list_commands(state)
        assert len({house.write_command(command) for command in commands}) == len(commands)
        for command in commands:
            if house.apply_command(state, command) == state:
                assert command.verb in ("examine", "look", "inventory", "use", "clean", "heat", "cool")
        state = house.apply_command(state, rng.choice(commands))


def test_what_is_behind_a_door_is_seen_only_when_it_is_open() -> None:
    at_cabinet = played("go to cabinet 1")
    assert KITCHEN.list_visible(at_cabinet) == [] and "take mug 1 from cabinet 1" not in texts(
        KITCHEN, at_cabinet
    )
    opened = played("go to cabinet 1", "open cabinet 1")
    assert KITCHEN.list_visible(opened) == [1] and "take mug 1 from cabinet 1" in texts(KITCHEN, opened)
    again = played("go to countertop 1", "go to cabinet 1", state=opened)
    assert KITCHEN.list_visible(again) == [1]  # doors stay open
    assert KITCHEN.list_visible(played("close cabinet 1", state=again)) == []


def test_one_hand_holds_one_thing() -> None:
    held = played("go to countertop 1", "take apple 1 from countertop 1", "go to cabinet 1", "open cabinet 1")
    assert not any(text.startswith("take") for text in texts(KITCHEN, held))
    assert "move apple 1 to cabinet 1" not in texts(KITCHEN, held)  # no home of apples
    assert "move apple 1 to fridge 1" in texts(KITCHEN, played("go to fridge 1", "open fridge 1", state=held))


def test_appliances_treat_what_is_held_with_their_door_open_or_not() -> None:
    held = played("go to countertop 1", "take apple 1 from countertop 1", "go to microwave 1")
    hot = played("heat apple 1 with microwave 1", state=held)
    assert hot.marks[0] == HOT and KITCHEN.name_with_marks(hot, 0) == "apple 1 (hot)"
    cool = played("go to fridge 1", "cool apple 1 with fridge 1", state=hot)
    assert cool.marks[0] == COOL
    clean = played("go to sinkbasin 1", "clean apple 1 with sinkbasin 1", state=cool)
    assert KITCHEN.name_with_marks(clean, 0) == "apple 1 (clean, cool)"
    assert not any(text.startswith("heat") for text in texts(KITCHEN, clean))


@pytest.mark.parametrize(
    ("goal", "way"),
    [
        (HouseholdGoal("place", "apple", "sinkbasin"), ("go to sinkbasin 1", "move apple 1 to sinkbasin 1")),
        (
            HouseholdGoal("heat", "apple", "sinkbasin"),
            (
                "go to microwave 1",
                "heat apple 1 with microwave 1",
                "go to sinkbasin 1",
                "move apple 1 to sinkbasin 1",
            ),
        ),
        (
            HouseholdGoal("clean", "apple", "fridge"),
            (
                "go to sinkbasin 1",
                "clean apple 1 with sinkbasin 1",
                "go to fridge 1",
                "open fridge 1",
                "move apple 1 to fridge 1",
            ),
        ),
    ],
)
def test_a_goal_is_met_by_the_last_command_of_its_way_and_not_before(
    goal: HouseholdGoal, way: tuple[str, ...]
) -> None:
    state = played("go to countertop 1", "take apple 1 from countertop 1")
    for text in way:
        assert not is_goal_met(KITCHEN, goal, state)
        state = played(text, state=state)
    assert is_goal_met(KITCHEN, goal, state)


def test_two_things_must_lie_in_one_place() -> None:
    house = House(TINY, "hut", ("box 1", "box 2", "desk"), ("book 1", "book 2"))
    goal = HouseholdGoal("two", "book", "box")
    assert not is_goal_met(house, goal, make_first_state(house, [0, 1]))
    assert is_goal_met(house, goal, make_first_state(house, [1, 1]))
    assert not is_goal_met(house, goal, make_first_state(house, [2, 2]))


def test_light_needs_the_thing_in_the_hand_and_the_lit_lamp_beside_it() -> None:
    house = House(TINY, "hut", ("desk", "bed"), ("book", "lamp"))
    goal, state = HouseholdGoal("light", "book", "lamp"), make_first_state(house, [1, 0])
    lit = played("go desk", "use lamp", house=house, state=state)
    held = played("go bed", "take book", house=house, state=lit)
    assert not is_goal_met(house, goal, lit) and not is_goal_met(house, goal, held)
    assert is_goal_met(house, goal, played("go desk", house=house, state=held))
    assert Command("take", 1, 0) not in house.list_commands(lit)


@pytest.mark.parametrize("catalogue", CATALOGUES.values())
def test_catalogues_name_only_places_there_are(catalogue: Catalogue) -> None:
    kinds = {kind for room in catalogue.rooms.values() for kind in room.places}
    homes = {home for thing in catalogue.things.values() for home in thing.homes}
    assert homes | catalogue.openable | set(catalogue.appliances.values()) <= kinds
    assert all(not set(t.homes) & catalogue.openable for t in catalogue.things.values() if t.is_lamp)
    assert {t for thing in catalogue.things.values() for t in thing.treatments} == {"clean", "heat", "cool"}


def test_goals_are_said_in_two_ways() -> None:
    assert write_instruction(HouseholdGoal("heat", "mug", "desk")) == "put a hot mug in/on the desk"
    assert write_instruction(HouseholdGoal("two", "pen", "bed"), 1) == "bring two pens together in/on one bed"
    assert write_instruction(HouseholdGoal("heat", "mug", "desk"), is_terse=True) == "heat mug put in desk"
