"""One who has to look for things: a scripted player that knows only what it has been shown.

`Notes` is its memory, filled from what is within reach and nothing else: what lies where it looked, which
doors it left open, what it holds. As long as the notes do not hold what the goal takes, it looks on, at the
place with the best chance per command, by the homes that things of that kind have; once they do, it follows a
shortest plan in the household as it knows it. Its success is a fair measure of what a perfect player without
luck can reach in the turns there are, though not a proven bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.envs.household.goals import Goal
from stepwell.envs.household.house import NOWHERE, Command, House, State
from stepwell.envs.household.planner import shortest_plan


@dataclass
class Notes:
    """What has been seen so far; things by number."""

    here: int = NOWHERE
    held: int = NOWHERE
    opened: int = 0
    at: dict[int, int] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    looked: set[int] = field(default_factory=set)

    def see(self, house: House, state: State) -> None:
        """Note what can be seen now."""
        self.here, self.held = state.here, state.held
        if state.held >= 0:
            self.at[state.held], self.marks[state.held] = NOWHERE, state.marks[state.held]
        if state.here < 0:
            return
        self.opened = self.opened & ~(1 << state.here) | (state.opened & 1 << state.here)
        if house.within_reach(state):
            self.looked.add(state.here)
        for thing in house.seen(state):
            self.at[thing], self.marks[thing] = state.here, state.marks[thing]


def next_command(house: House, goal: Goal, notes: Notes) -> Command | None:
    """What to do now; None where everything has been looked at in vain."""
    known = sorted(notes.at)
    missing = _missing(house, goal, known)
    if not missing:
        return _planned(house, goal, notes, known)
    return _on_the_way(house, goal, notes) or _look_on(house, missing, notes)


def _missing(house: House, goal: Goal, known: list[int]) -> list[str]:
    """Kinds of things that the goal takes more of than are known."""
    kinds = [house.thing_kinds[thing] for thing in known]
    missing = [goal.thing] if kinds.count(goal.thing) < goal.num_things else []
    return missing + ([goal.place] if goal.family == "light" and goal.place not in kinds else [])


def _planned(house: House, goal: Goal, notes: Notes, known: list[int]) -> Command | None:
    """The first command of a shortest plan in a household that has only the known things."""
    believed = House(house.catalogue, house.room, house.places, tuple(house.things[thing] for thing in known))
    number = {thing: index for index, thing in enumerate(known)}
    at, marks = tuple(notes.at[thing] for thing in known), tuple(notes.marks[thing] for thing in known)
    state = State(notes.here, number.get(notes.held, NOWHERE), at, marks, notes.opened)
    plan = shortest_plan(believed, goal, state)
    if not plan:
        return None
    verb, thing, place = plan[0]
    return Command(verb, known[thing] if thing >= 0 else NOWHERE, place)


def _on_the_way(house: House, goal: Goal, notes: Notes) -> Command | None:
    """What costs no walk: taking a thing of the goal that lies here, leaving one where it belongs."""
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


def _look_on(house: House, missing: list[str], notes: Notes) -> Command | None:
    """Open what one stands at, or go where the chance per command is best."""
    here, shut = notes.here, house.has_door & ~notes.opened
    if here >= 0 and here not in notes.looked and _chance(house, missing, here):
        return Command("open", place=here)
    places = [place for place in range(len(house.places)) if place not in notes.looked]
    if not places:
        return None
    best = max(places, key=lambda place: (_chance(house, missing, place) / (1 + (shut >> place & 1)), -place))
    return Command("open" if best == here else "go", place=best)


def _chance(house: House, missing: list[str], place: int) -> float:
    """How likely things of the missing kinds lie in a place, by their homes."""
    chance = 0.0
    for kind in missing:
        homes = house.catalogue.things[kind].homes
        if house.place_kinds[place] in homes:
            chance += 1 / sum(home in homes for home in house.place_kinds)
    return chance
