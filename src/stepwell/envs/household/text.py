"""Texts of a household: observations, results of commands, reasons of failures, and the true state."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stepwell.envs.household.house import MARKS, Command, House, State

NOTHING_HAPPENS = "Nothing happens."
MAX_CHARS, MAX_SHOWN = 240, 60  # of a command, and of a quoted command
_DONE = {
    "go": "You go to the {place}.",
    "open": "You open the {place}.",
    "close": "You close the {place}.",
    "take": "You take the {thing} from the {place}.",
    "move": "You move the {thing} to the {place}.",
    "clean": "You clean the {thing} with the {place}.",
    "heat": "You heat the {thing} with the {place}.",
    "cool": "You cool the {thing} with the {place}.",
    "use": "You turn on the {thing}.",
}


def write_observation(task: str, result: str, house: House, state: State, commands: Sequence[str]) -> str:
    """An observation: the task, the last result, what is in reach and in hand, and the possible commands."""
    if house.catalogue.is_terse:
        return _write_tersely(task, result, house, state, commands)
    lines = [f"Task: {task}.", result, describe_view(house, state), describe_hand(house, state)]
    return "\n".join([*filter(None, lines), f"Commands: {', '.join(commands)}"])


def _write_tersely(task: str, result: str, house: House, state: State, commands: Sequence[str]) -> str:
    """The same in few words. Only commands stand at the start of a line, because a word after a space is one
    token. The result of a command shows in the rest, so only failures are reported."""
    lines = [f"to {task}", f"at {_write_terse_view(house, state)}", f"You: {_name_held(house, state)}"]
    failed = ["It is not done."] if result.startswith(NOTHING_HAPPENS) else []
    return "\n".join([*lines, *failed, ", ".join(commands)])


def _write_terse_view(house: House, state: State) -> str:
    """`desk: cup, lamp`."""
    if state.here < 0:
        return "start"
    things = (
        ", ".join(house.name_with_marks(state, thing) for thing in house.list_visible(state)) or "nothing"
    )
    return f"{house.places[state.here]}: {things if house.is_within_reach(state) else 'closed'}"


def describe_view(house: House, state: State) -> str:
    """The current place, and what is visible there."""
    if state.here < 0:
        return f"You are in the middle of the {house.room}."
    place = house.places[state.here]
    if not house.is_within_reach(state):
        return f"You are at the {place}. It is closed."
    is_open = " It is open." if house.has_door >> state.here & 1 else ""
    things = (
        ", ".join(house.name_with_marks(state, thing) for thing in house.list_visible(state)) or "nothing"
    )
    return f"You are at the {place}.{is_open} You see: {things}."


def describe_hand(house: House, state: State) -> str:
    """What is in the hand."""
    return f"You hold: {_name_held(house, state)}."


def describe_result(house: House, state: State, command: Command) -> str:
    """The result of a command, in the state after it."""
    verb, thing, place = command
    if verb == "examine":
        if thing < 0:
            return describe_view(house, state)
        marked = house.name_with_marks(state, thing)
        return f"It is a {marked}." if "(" in marked else f"There is nothing special about the {marked}."
    if verb == "inventory":
        return describe_hand(house, state)
    if verb == "look":
        around = ", ".join(house.places)
        return f"Around you: {around}."
    names = {
        "thing": house.things[thing] if thing >= 0 else "",
        "place": house.places[place] if place >= 0 else "",
    }
    return _DONE[verb].format(**names)


def explain_failure(house: House, state: State, text: str) -> str:
    """Why an impossible command does nothing, in one sentence for the agent."""
    if not text:
        return f"{NOTHING_HAPPENS} The command is empty."
    if len(text) > MAX_CHARS:
        return f"{NOTHING_HAPPENS} The command is too long ({len(text)} characters)."
    verb, _, rest = text.partition(" ")
    if verb not in {"go", "take", "move", "open", "close", "use", "examine", "look", "inventory", *MARKS}:
        return f"{NOTHING_HAPPENS} There is no command {_shorten(text)!r}; choose one of the commands."
    within = [house.things[thing] for thing in (*house.list_visible(state), state.held) if thing >= 0]
    named = [
        name for name in (*house.places, *within) if _has_name(name, rest)
    ]  # do not reveal what is not visible
    if not named:
        return f"{NOTHING_HAPPENS} {_shorten(text)!r} names nothing that is here; choose one of the commands."
    return f"{NOTHING_HAPPENS} {_explain_obstacle(house, state, verb, named)}"


def _explain_obstacle(house: House, state: State, verb: str, named: Sequence[str]) -> str:
    """Why a command with existing things or places is not possible."""
    place = next((house.places.index(name) for name in named if name in house.places), -1)
    if verb == "go":
        return (
            f"You are at the {house.places[place]} already."
            if place == state.here >= 0
            else "You can go to places."
        )
    if place >= 0 and place != state.here:
        return f"You are not at the {house.places[place]}."
    if verb in ("open", "close"):
        if place < 0 or not house.has_door >> place & 1:
            return f"The {named[0]} cannot be opened or closed."
        is_open = bool(state.opened >> place & 1)
        return f"The {named[0]} is {'open' if is_open else 'closed'} already."
    if state.here >= 0 and not house.is_within_reach(state) and verb in ("take", "move"):
        return f"The {house.places[state.here]} is closed."
    thing = next((house.things.index(name) for name in named if name in house.things), -1)
    if verb == "take":
        return "Your hand is full." if state.held >= 0 else "That is not here to be taken."
    if verb in ("move", *MARKS) and (state.held < 0 or state.held != thing):
        return "You do not hold that."
    return "That cannot be done here; choose one of the commands."


def write_sentences(task: str, house: House, state: State) -> str:
    """The whole true state in sentences: the current place, the held thing, the contents of every place."""
    at = f"at the {house.places[state.here]}" if state.here >= 0 else f"in the middle of the {house.room}"
    told_places = [_describe_place(house, state, place) for place in range(len(house.places))]
    return " ".join(
        [f"The task is: {task}.", f"The player is {at}.", _describe_held(house, state), *told_places]
    )


def write_structured(task: str, house: House, state: State) -> str:
    """The same as one JSON object."""
    value = {
        "task": task,
        "at": house.places[state.here] if state.here >= 0 else None,
        "held": house.name_with_marks(state, state.held) if state.held >= 0 else None,
        "places": {name: _list_inside(house, state, place) for place, name in enumerate(house.places)},
        "open": [name for place, name in enumerate(house.places) if state.opened >> place & 1],
    }
    return json.dumps(value)


def _describe_held(house: House, state: State) -> str:
    return f"The player holds {_name_held(house, state)}."


def _name_held(house: House, state: State) -> str:
    return house.name_with_marks(state, state.held) if state.held >= 0 else "nothing"


def _describe_place(house: House, state: State, place: int) -> str:
    door = ""
    if house.has_door >> place & 1:
        door = "open " if state.opened >> place & 1 else "closed "
    return f"The {door}{house.places[place]} has {', '.join(_list_inside(house, state, place)) or 'nothing'}."


def _list_inside(house: House, state: State, place: int) -> list[str]:
    return [house.name_with_marks(state, thing) for thing, at in enumerate(state.at) if at == place]


def _has_name(name: str, text: str) -> bool:
    return f" {name} " in f" {text} "


def _shorten(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
