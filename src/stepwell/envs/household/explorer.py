"""The explorer: a scripted player that knows only what it has observed.

`ExplorerNotes` is its memory. It holds only what was within reach: the contents of visited places, open
doors, and the thing in the hand. While something for the goal is missing, the explorer goes to the place with
the best chance per command of containing it, judged by the homes of that kind of thing. Then it follows a
shortest plan in the known part of the household. Its success rate estimates what a perfect player without
luck can reach within the turn limit; it is not a proven bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.envs.household.goals import HouseholdGoal
from stepwell.envs.household.house import NOWHERE, Command, House, State
from stepwell.envs.household.planner import find_shortest_plan


@dataclass
class ExplorerNotes:
    """The observations so far; things by number."""

    here: int = NOWHERE
    held: int = NOWHERE
    opened: int = 0
    at: dict[int, int] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    looked: set[int] = field(default_factory=set)

    def note_view(self, house: House, state: State) -> None:
        """Record what is visible now."""
        self.here, self.held = state.here, state.held
        if state.held >= 0:
            self.at[state.held], self.marks[state.held] = NOWHERE, state.marks[state.held]
        if state.here < 0:
            return
        self.opened = self.opened & ~(1 << state.here) | (state.opened & 1 << state.here)
        if house.is_within_reach(state):
            self.looked.add(state.here)
        for thing in house.list_visible(state):
            self.at[thing], self.marks[thing] = state.here, state.marks[thing]


def choose_command(house: House, goal: HouseholdGoal, notes: ExplorerNotes) -> Command | None:
    """The next command; None if everything was searched in vain."""
    known = sorted(notes.at)
    missing = _list_missing_kinds(house, goal, known)
    if not missing:
        return _plan_command(house, goal, notes, known)
    return _act_on_the_way(house, goal, notes) or _choose_place(house, missing, notes)


def _list_missing_kinds(house: House, goal: HouseholdGoal, known: list[int]) -> list[str]:
    """Kinds of things of which the goal needs more than are known."""
    kinds = [house.thing_kinds[thing] for thing in known]
    missing = [goal.thing] if kinds.count(goal.thing) < goal.num_things else []
    return missing + ([goal.place] if goal.family == "light" and goal.place not in kinds else [])


def _plan_command(
    house: House, goal: HouseholdGoal, notes: ExplorerNotes, known: list[int]
) -> Command | None:
    """The first command of a shortest plan in a household that has only the known things."""
    believed = House(house.catalogue, house.room, house.places, tuple(house.things[thing] for thing in known))
    number = {thing: index for index, thing in enumerate(known)}
    at, marks = tuple(notes.at[thing] for thing in known), tuple(notes.marks[thing] for thing in known)
    state = State(notes.here, number.get(notes.held, NOWHERE), at, marks, notes.opened)
    plan = find_shortest_plan(believed, goal, state)
    if not plan:
        return None
    verb, thing, place = plan[0]
    return Command(verb, known[thing] if thing >= 0 else NOWHERE, place)


def _act_on_the_way(house: House, goal: HouseholdGoal, notes: ExplorerNotes) -> Command | None:
    """A command without a walk: take a thing of the goal here, or put one down where it belongs."""
    here = notes.here
    if here not in notes.looked or (house.has_door & ~notes.opened) >> here & 1:
        return None
    is_goal_place = house.place_kinds[here] == goal.place
    if notes.held >= 0:
        is_goal_thing = house.thing_kinds[notes.held] == goal.thing
        fits = house.may_lie[notes.held] >> here & 1
        if fits and (not is_goal_thing or (is_goal_place and goal.family == "two")):
            return Command("move", notes.held, here)
        return None
    if is_goal_place and goal.family == "two":
        return None
    found = (t for t, place in notes.at.items() if place == here and house.thing_kinds[t] == goal.thing)
    thing = next(found, NOWHERE)
    return Command("take", thing, here) if thing >= 0 else None


def _choose_place(house: House, missing: list[str], notes: ExplorerNotes) -> Command | None:
    """Open the current place, or go where the chance per command is best."""
    here, shut = notes.here, house.has_door & ~notes.opened
    if here >= 0 and here not in notes.looked and _estimate_chance(house, missing, here):
        return Command("open", place=here)
    places = [place for place in range(len(house.places)) if place not in notes.looked]
    if not places:
        return None
    best = max(
        places,
        key=lambda place: (_estimate_chance(house, missing, place) / (1 + (shut >> place & 1)), -place),
    )
    return Command("open" if best == here else "go", place=best)


def _estimate_chance(house: House, missing: list[str], place: int) -> float:
    """The probability that things of the missing kinds lie in a place, by their homes."""
    chance = 0.0
    for kind in missing:
        homes = house.catalogue.things[kind].homes
        if house.place_kinds[place] in homes:
            chance += 1 / sum(home in homes for home in house.place_kinds)
    return chance
