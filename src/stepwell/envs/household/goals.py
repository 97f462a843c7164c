"""Goals: six families of tasks, their conditions and their wordings.

    place   a thing of the kind lies in a place of the kind
    light   the agent holds a thing of the kind at a place with a lit lamp of the kind
    clean   as place, and that same thing is clean (`heat`: hot, `cool`: cool)
    two     two things of the kind lie in one place of the kind

Only the state counts, not how it was reached; any thing of the kind will do.
"""

from __future__ import annotations

from typing import NamedTuple

from stepwell.envs.household.catalogue import Family
from stepwell.envs.household.house import LIT, MARKS, House, State

_SAID = {
    "place": ("put a {thing} in/on the {place}", "the {place} should have a {thing}"),
    "light": ("look at a {thing} in the light of the {place}", "hold a {thing} beside a lit {place}"),
    "clean": ("put a clean {thing} in/on the {place}", "wash a {thing}, then put it in/on the {place}"),
    "heat": ("put a hot {thing} in/on the {place}", "warm a {thing} up, then put it in/on the {place}"),
    "cool": ("put a cool {thing} in/on the {place}", "chill a {thing}, then put it in/on the {place}"),
    "two": ("put two {thing}s in/on one {place}", "bring two {thing}s together in/on one {place}"),
}
_SAID_TERSELY = {
    "place": "put {thing} in {place}",
    "light": "look at {thing} by {place}",
    "clean": "clean {thing} put in {place}",
    "heat": "heat {thing} put in {place}",
    "cool": "cool {thing} put in {place}",
    "two": "put two {thing} in {place}",
}


class HouseholdGoal(NamedTuple):
    """A goal: a family, a kind of thing, and a kind of place (of lamp, for `light`)."""

    family: Family
    thing: str
    place: str

    @property
    def num_things(self) -> int:
        """The number of things of the kind that it needs."""
        return 2 if self.family == "two" else 1


def write_instruction(goal: HouseholdGoal, wording: int = 0, *, is_terse: bool = False) -> str:
    """The goal as an instruction; there are two wordings of each family, and a terse one."""
    said = _SAID_TERSELY[goal.family] if is_terse else _SAID[goal.family][wording]
    return said.format(thing=goal.thing, place=goal.place)


def is_goal_met(house: House, goal: HouseholdGoal, state: State) -> bool:
    """Whether the state satisfies the goal."""
    if goal.family == "light":
        if state.held < 0 or house.thing_kinds[state.held] != goal.thing:
            return False
        return any(
            place == state.here and state.marks[lamp] & LIT and house.thing_kinds[lamp] == goal.place
            for lamp, place in enumerate(state.at)
        )
    mark = MARKS.get(goal.family, 0)
    lying: set[int] = set()
    for thing, place in enumerate(state.at):
        if place < 0 or house.thing_kinds[thing] != goal.thing or house.place_kinds[place] != goal.place:
            continue
        if state.marks[thing] & mark != mark:
            continue
        if goal.num_things == 1 or place in lying:
            return True
        lying.add(place)
    return False
