"""A household as a planning problem of ALFWorld's domain, so that ALFWorld's engine can play it.

Each place has its own location, and the agent starts at an empty one. Objects are called `kind_bar_NN`.
ALFWorld derives names such as `mug 1` from them by counting, so the numbers run backwards there.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepwell.envs.household.catalogue import TREATMENTS
from stepwell.envs.household.goals import HouseholdGoal
from stepwell.envs.household.house import House, State, find_kind

_CAN = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}
_IS = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}
_ALWAYS_NAMED = ("knifetype", "butterknifetype")  # the domain names these types itself


def write_problem(house: House, goal: HouseholdGoal, state: State) -> str:
    """The text of the problem; `state` must be a first state."""
    assert state.here < 0 and state.held < 0 and not state.opened
    place_types = {_write_type(kind) for kind in (*house.place_kinds, *house.catalogue.appliances.values())}
    thing_types = {_write_type(kind) for kind in (*house.thing_kinds, goal.thing)} | {*_ALWAYS_NAMED}
    objects = [
        "agent1 - agent",
        *(f"loc_{place} - location" for place in range(len(house.places) + 1)),
        *(f"{_write_id(name)} - receptacle" for name in house.places),
        *(f"{_write_id(name)} - object" for name in house.things),
        *(f"{kind} - rtype" for kind in sorted(place_types)),
        *(f"{kind} - otype" for kind in sorted(thing_types)),
    ]
    return (
        f"(define (problem household)\n(:domain alfred)\n(:objects\n{_write_lines(objects)})\n"
        f"(:init\n{_write_lines(_list_facts(house, state))})\n(:goal {_write_goal(goal)}))\n"
    )


def _list_facts(house: House, state: State) -> Iterable[str]:
    yield f"(atLocation agent1 loc_{len(house.places)})"
    for place, name in enumerate(house.places):
        yield f"(receptacleAtLocation {_write_id(name)} loc_{place})"
        yield f"(receptacleType {_write_id(name)} {_write_type(house.place_kinds[place])})"
        if house.has_door >> place & 1:
            yield f"(openable {_write_id(name)})"
    for thing, name in enumerate(house.things):
        kind = house.thing_kinds[thing]
        yield f"(objectType {_write_id(name)} {_write_type(kind)})"
        yield f"(inReceptacle {_write_id(name)} {_write_id(house.places[state.at[thing]])})"
        yield f"(objectAtLocation {_write_id(name)} loc_{state.at[thing]})"
        yield f"(toggleable {_write_id(name)})" if house.is_lamp[thing] else f"(pickupable {_write_id(name)})"
        for verb in TREATMENTS:
            if verb in house.catalogue.things[kind].treatments:
                yield f"({_CAN[verb]} {_write_id(name)})"
    for kind in sorted(set(house.thing_kinds)):
        homes = sorted(set(house.catalogue.things[kind].homes) & set(house.place_kinds))
        yield from (f"(canContain {_write_type(home)} {_write_type(kind)})" for home in homes)


def _write_goal(goal: HouseholdGoal) -> str:
    thing = f"(objectType ?o {_write_type(goal.thing)})"
    if goal.family == "light":
        is_lit = f"(objectType ?t {_write_type(goal.place)}) (isToggled ?t) (inReceptacle ?t ?r)"
        lamp = f"(exists (?t - object) (and {is_lit}))"
        stands = "(exists (?l - location) (and (atLocation agent1 ?l) (receptacleAtLocation ?r ?l)))"
        held = f"(exists (?o - object) (and {thing} (holds agent1 ?o)))"
        return f"(exists (?r - receptacle) (and {stands} {lamp} {held}))"
    lies = f"{thing} (inReceptacle ?o ?r)"
    if goal.family == "two":
        other = f"(objectType ?p {_write_type(goal.thing)}) (inReceptacle ?p ?r) (not (= ?o ?p))"
        lies += f" (exists (?p - object) (and {other}))"
    elif goal.family in _IS:
        lies += f" ({_IS[goal.family]} ?o)"
    place = f"(receptacleType ?r {_write_type(goal.place)})"
    return f"(exists (?r - receptacle) (and {place} (exists (?o - object) (and {lies}))))"


def _write_type(kind: str) -> str:
    """`SinkBasinType` in the domain; the engine reads all names as lower case."""
    return f"{kind}type"


def _write_id(name: str) -> str:
    kind = find_kind(name)
    number = 99 - int(name.removeprefix(kind) or 1)
    if kind.endswith("basin"):  # its names of basins consist of two parts
        return f"{kind.removesuffix('basin')}_bar_{number:02d}_bar_{kind}"
    return f"{kind}_bar_{number:02d}"


def _write_lines(items: Iterable[str]) -> str:
    return "".join(f"    {item}\n" for item in items)
