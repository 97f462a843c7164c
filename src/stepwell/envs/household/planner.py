"""Shortest plans under full knowledge: A* over the household model, without irrelevant commands.

The plan found is a shortest one. The search considers only commands that are enough for some shortest plan:

* Things of other kinds than the goal's are never taken; one held at the start is only put down.
* Among equivalent places (a *class*: same use for the goal, same door, the same goal things inside), one
  represents all, because exchanging two of them gives a plan of equal length. Two are kept if goal things lie
  inside, since a goal needs at most two things. The current place is always kept.
* Doors are never closed and nothing is examined, because no goal depends on it.

`bound_remaining` never exceeds the true number of remaining commands. For the cheapest things, it adds the
takes, treatments and moves that every plan contains, and a walk between those that cannot happen at one
place. States are reopened when a shorter path to them is found, so A* needs no other property for its proof.
The tests compare it with a brute-force search over all commands.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from stepwell.core import EnvError
from stepwell.envs.household.goals import HouseholdGoal, is_goal_met
from stepwell.envs.household.house import LIT, MARKS, NOWHERE, Command, House, State

MAX_STATES = 200_000


def find_shortest_plan(house: House, goal: HouseholdGoal, state: State) -> list[Command]:
    """The commands of a shortest path from `state` to the goal; [] if it is already met."""
    problem = _Problem(house, goal, state)
    order = itertools.count()
    came: dict[State, tuple[int, State | None, Command | None]] = {state: (0, None, None)}
    frontier = [(problem.bound_remaining(state), next(order), 0, state)]
    while frontier:
        _, _, length, at = heapq.heappop(frontier)
        if length > came[at][0]:
            continue
        if is_goal_met(house, goal, at):
            return _trace_plan(came, at)
        for command in problem.list_commands(at):
            after = house.apply_command(at, command)
            if after not in came or length + 1 < came[after][0]:
                came[after] = length + 1, at, command
                bound = length + 1 + problem.bound_remaining(after)
                heapq.heappush(frontier, (bound, -next(order), length + 1, after))
        if len(came) > MAX_STATES:
            break
    raise EnvError(
        f"no plan for {goal} among {len(came):,} states: the household does not hold what it takes"
    )


def _trace_plan(came: dict[State, tuple[int, State | None, Command | None]], end: State) -> list[Command]:
    plan: list[Command] = []
    _, before, command = came[end]
    while before is not None and command is not None:
        plan.append(command)
        _, before, command = came[before]
    return plan[::-1]


class _Problem:
    """One household with one goal: the relevant commands, and a lower bound of the remaining ones."""

    def __init__(self, house: House, goal: HouseholdGoal, state: State) -> None:
        self.house, self.goal = house, goal
        kinds = enumerate(house.thing_kinds)
        self.things = [thing for thing, kind in kinds if kind == goal.thing and not house.is_lamp[thing]]
        self.lamps = [
            thing
            for thing, kind in enumerate(house.thing_kinds)
            if house.is_lamp[thing] and kind == goal.place
        ]
        self.mark = MARKS.get(goal.family, 0)
        self.appliances = house.treats[goal.family] if self.mark else 0
        self.goal_places = sum(
            1 << place for place, kind in enumerate(house.place_kinds) if kind == goal.place
        )
        self.apart = not self.appliances & self.goal_places  # treating and placing need a walk in between
        self.places = self._list_places(state)

    def _list_places(self, state: State) -> list[int]:
        """The places that are enough for some shortest plan."""
        kept: dict[tuple[object, ...], list[int]] = {}
        for place in range(len(self.house.places)):
            if place == state.here:
                continue
            inside = sorted(state.marks[thing] for thing in self.things if state.at[thing] == place)
            lit = sorted(state.marks[lamp] for lamp in self.lamps if state.at[lamp] == place)
            uses = self.goal_places >> place & 1, self.appliances >> place & 1
            drop = state.held not in (NOWHERE, *self.things) and self.house.may_lie[state.held] >> place & 1
            if not (inside or lit or any(uses) or drop):
                continue
            door = self.house.has_door & ~state.opened
            fits = not self.things or self.house.may_lie[self.things[0]] >> place & 1
            key = (uses, drop, fits, door >> place & 1, tuple(inside), tuple(lit))
            alike = kept.setdefault(key, [])
            if len(alike) < (2 if inside else 1):
                alike.append(place)
        here = [state.here] if state.here >= 0 else []
        return here + [place for alike in kept.values() for place in alike]

    def list_commands(self, state: State) -> Iterator[Command]:
        """The relevant commands in `state`."""
        house, here, held = self.house, state.here, state.held
        for place in self.places:
            if place != here:
                yield Command("go", place=place)
        if here < 0:
            return
        if self.mark and held >= 0 and house.thing_kinds[held] == self.goal.thing:
            can = house.catalogue.things[self.goal.thing].treatments
            if self.goal.family in can and self.appliances >> here & 1:
                yield Command(self.goal.family, held, here)
        if not house.is_within_reach(state):
            yield Command("open", place=here)
            return
        if held >= 0:
            if house.may_lie[held] >> here & 1:
                yield Command("move", held, here)
        else:
            yield from (Command("take", thing, here) for thing in self.things if state.at[thing] == here)
        yield from (Command("use", lamp) for lamp in self.lamps if state.at[lamp] == here)

    def bound_remaining(self, state: State) -> int:
        """A lower bound of the number of remaining commands."""
        costs = sorted(self._bound_cost(state, thing) for thing in self.things)
        return sum(costs[: self.goal.num_things])

    def _bound_cost(self, state: State, thing: int) -> int:
        """The minimum cost of meeting the goal with this thing (for two: this thing's part)."""
        place, is_single = state.at[thing], self.goal.num_things == 1
        if self.goal.family == "light":
            lamps = [lamp for lamp in self.lamps if state.marks[lamp] & LIT]
            stand = state.here if place < 0 else place
            walk = all(state.at[lamp] != stand for lamp in self.lamps)
            return self._bound_fetching(state, thing, is_single) + walk + (not lamps)
        is_home = place >= 0 and self.goal_places >> place & 1
        is_done = state.marks[thing] & self.mark == self.mark
        if is_home and is_done:
            return 0
        cost = self._bound_fetching(state, thing, is_single) + 1
        stand = state.here if place < 0 else place
        shut = self.house.has_door & ~state.opened
        if is_single and not is_home and not self.goal_places & ~shut:
            cost += 1  # every goal place must be opened first
        if not is_done:
            return cost + 1 + (stand < 0 or not self.appliances >> stand & 1) + self.apart
        return cost + (stand < 0 or not self.goal_places >> stand & 1)

    def _bound_fetching(self, state: State, thing: int, is_single: bool) -> int:
        """Commands until the thing is in the hand."""
        place = state.at[thing]
        if place < 0:
            return 0
        cost = 1 + (place != state.here)
        if is_single:  # for two, one door or one emptied hand may serve both
            cost += (self.house.has_door & ~state.opened) >> place & 1
            cost += state.held >= 0
        return cost
