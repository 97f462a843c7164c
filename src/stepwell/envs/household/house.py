"""The model of a household: its contents, the possible commands, and their effects.

    go to P             stand at another place
    open P, close P     the current place, if it has a door
    take T from P       a thing within reach, with an empty hand
    move T to P         the held thing, into the current place, if it is a home of such things
    clean T with P      the held thing, at a sink (`heat`: at a microwave, `cool`: at a fridge, open or not)
    use T               a lamp within reach: it is lit from then on
    examine X           the current place or the held thing; like `look` and `inventory`, without effect

A terse catalogue writes `go P`, and omits the current place: `take T`, `move T`, `clean T`.

A place is *within reach* if the agent stands at it and it is open or has no door. There is one hand. These
are the preconditions and effects of ALFWorld's planning domain; a test plays both side by side.

Invariants
* Every thing is in exactly one place, or in the hand: `at[thing]` is -1 exactly if `held == thing`.
* `list_commands` lists exactly the possible commands; `apply_command` is defined for those and does not
  change its argument.
* Marks only accumulate, except heat and cold, which undo each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepwell.envs.household.catalogue import TREATMENTS, Catalogue

NOWHERE = -1
CLEAN, HOT, COOL, LIT = 1, 2, 4, 8
MARKS = {"clean": CLEAN, "heat": HOT, "cool": COOL}
UNDOES = {"clean": 0, "heat": COOL, "cool": HOT}
MARK_WORDS = {CLEAN: "clean", HOT: "hot", COOL: "cool", LIT: "on"}


class Command(NamedTuple):
    """One command: an action with its thing and place (numbers; -1: none)."""

    verb: str
    thing: int = NOWHERE
    place: int = NOWHERE


class State(NamedTuple):
    """The agent's place and everything that can change. `opened` has one bit per place."""

    here: int
    held: int
    at: tuple[int, ...]
    marks: tuple[int, ...]
    opened: int


@dataclass(frozen=True)
class House:
    """The constant part: places and things by number, their kinds, and where things may lie."""

    catalogue: Catalogue
    room: str
    places: tuple[str, ...]
    things: tuple[str, ...]
    place_kinds: tuple[str, ...] = field(init=False)
    thing_kinds: tuple[str, ...] = field(init=False)
    has_door: int = field(init=False)  # one bit per place
    may_lie: tuple[int, ...] = field(init=False)  # one bit per place, for every thing
    is_lamp: tuple[bool, ...] = field(init=False)
    treats: dict[str, int] = field(init=False)  # one bit per place, for every treatment
    walks: list[Command] = field(init=False)  # one per place
    _texts: dict[Command, str] = field(init=False)

    def __post_init__(self) -> None:
        catalogue = self.catalogue
        place_kinds, thing_kinds = _find_kinds(self.places), _find_kinds(self.things)
        kinds = [catalogue.things[kind] for kind in thing_kinds]
        values = {
            "place_kinds": place_kinds,
            "thing_kinds": thing_kinds,
            "has_door": self._to_bits(place_kinds, catalogue.openable),
            "may_lie": tuple(self._to_bits(place_kinds, kind.homes) for kind in kinds),
            "is_lamp": tuple(kind.is_lamp for kind in kinds),
            "treats": {
                verb: self._to_bits(place_kinds, (catalogue.appliances[verb],)) for verb in TREATMENTS
            },
            "walks": [Command("go", place=place) for place in range(len(self.places))],
            "_texts": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def _to_bits(kinds: Sequence[str], chosen: Sequence[str] | frozenset[str]) -> int:
        return sum(1 << place for place, kind in enumerate(kinds) if kind in chosen)

    def is_within_reach(self, state: State) -> bool:
        """Whether the contents of the current place can be seen and touched."""
        here = state.here
        return here >= 0 and not (self.has_door & ~state.opened) >> here & 1

    def list_visible(self, state: State) -> list[int]:
        """The things within reach."""
        if not self.is_within_reach(state):
            return []
        return [thing for thing, place in enumerate(state.at) if place == state.here]

    def list_commands(self, state: State) -> list[Command]:
        """All commands that are possible now."""
        here, held = state.here, state.held
        found = self.walks[:here] + self.walks[here + 1 :] if here >= 0 else self.walks[:]
        found += self._list_door_commands(state)
        seen = self.list_visible(state)
        if held < 0:
            found += [Command("take", thing, here) for thing in seen if not self.is_lamp[thing]]
        elif here >= 0:
            if self.is_within_reach(state) and self.may_lie[held] >> here & 1:
                found.append(Command("move", held, here))
            can = self.catalogue.things[self.thing_kinds[held]].treatments
            found += [
                Command(verb, held, here)
                for verb in TREATMENTS
                if verb in can and self.treats[verb] >> here & 1
            ]
        found += [Command("use", thing) for thing in seen if self.is_lamp[thing]]
        if self.catalogue.has_idle_verbs:
            found += self._list_idle_commands(state)
        return found

    def _list_door_commands(self, state: State) -> list[Command]:
        here = state.here
        if here < 0 or not self.has_door >> here & 1:
            return []
        if not state.opened >> here & 1:
            return [Command("open", place=here)]
        return [Command("close", place=here)] if self.catalogue.has_idle_verbs else []

    def _list_idle_commands(self, state: State) -> list[Command]:
        found = [Command("examine", place=state.here)] if state.here >= 0 else []
        if state.held >= 0:
            found.append(Command("examine", state.held))
        return [*found, Command("look"), Command("inventory")]

    def apply_command(self, state: State, command: Command) -> State:
        """The state after a possible command."""
        verb, thing, place = command
        if verb == "go":
            return state._replace(here=place)
        if verb == "open":
            return state._replace(opened=state.opened | 1 << place)
        if verb == "close":
            return state._replace(opened=state.opened & ~(1 << place))
        if verb == "take":
            return state._replace(held=thing, at=_replace_at(state.at, thing, NOWHERE))
        if verb == "move":
            return state._replace(held=NOWHERE, at=_replace_at(state.at, thing, place))
        if verb == "use":
            return state._replace(marks=_replace_at(state.marks, thing, state.marks[thing] | LIT))
        if verb in MARKS:
            mark = state.marks[thing] & ~UNDOES[verb] | MARKS[verb]
            return state._replace(marks=_replace_at(state.marks, thing, mark))
        return state

    def write_command(self, command: Command) -> str:
        """The text of a command."""
        known = self._texts.get(command)
        if known is None:
            known = self._texts[command] = self._write_command(command)
        return known

    def _write_command(self, command: Command) -> str:
        verb, thing, place = command
        if self.catalogue.is_terse:
            return f"{verb} {self.things[thing] if thing >= 0 else self.places[place]}"
        if verb == "go":
            return f"go to {self.places[place]}"
        if verb == "take":
            return f"take {self.things[thing]} from {self.places[place]}"
        if verb == "move":
            return f"move {self.things[thing]} to {self.places[place]}"
        if verb in MARKS:
            return f"{verb} {self.things[thing]} with {self.places[place]}"
        if thing >= 0:
            return f"{verb} {self.things[thing]}"
        return f"{verb} {self.places[place]}" if place >= 0 else verb

    def name_with_marks(self, state: State, thing: int) -> str:
        """A thing's name with its treatments: `mug 1 (clean, hot)`, or tersely `clean hot mug 1`."""
        words = [word for mark, word in MARK_WORDS.items() if state.marks[thing] & mark]
        if self.catalogue.is_terse:
            return " ".join([*words, self.things[thing]])
        return f"{self.things[thing]} ({', '.join(words)})" if words else self.things[thing]


def make_first_state(house: House, at: Sequence[int]) -> State:
    """In the middle of the room, with an empty hand and all doors closed."""
    return State(NOWHERE, NOWHERE, tuple(at), (0,) * len(at), 0)


def find_kind(name: str) -> str:
    """The kind of a place or thing: its name without the number."""
    kind, _, number = name.rpartition(" ")
    return kind if number.isdecimal() else name


def _find_kinds(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(find_kind(name) for name in names)


def _replace_at(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])
