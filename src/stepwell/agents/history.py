"""The earlier turns in a few lines: the memory of an agent that gets a new prompt in every turn.

    Done so far:
    (2 earlier turns left out)
    3. search(query="wells"); search(query="stairs") -> 20 passages
    4. nothing: not valid JSON: ...

Invariants
* One line per turn, numbered from the episode's first; a line is cut at the number of
  characters that the environment asks for (`EnvDescription.history_line_chars`).
* All lines together have at most the given number of characters. If they would have more, the oldest
  are left out, and a line says how many.
* The text depends on the turns alone: a step's prompt can be rebuilt from the steps before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.core.env_description import HISTORY_LINE_CHARS, ActionSpace
from stepwell.core.tools import read_call


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn: what was done, why something was not, and the result from the environment."""

    actions: tuple[str, ...] = ()
    lost: str = ""
    result: str = ""


def format_history(
    actions: ActionSpace,
    past: Sequence[PastTurn],
    max_chars: int,
    *,
    line_chars: int = HISTORY_LINE_CHARS,
    with_lost: bool = True,
) -> str:
    """The turns of `past`, one line each; empty if there are none."""
    lines: list[str] = []
    num_chars = 0
    for number in range(len(past), 0, -1):
        line = f"{number}. {_format_turn(actions, past[number - 1], with_lost)}"
        line = line if len(line) <= line_chars else line[: line_chars - 3] + "..."
        num_chars += len(line) + 1
        if num_chars > max_chars:
            lines.append(f"({number} earlier turn{'s' if number > 1 else ''} left out)")
            break
        lines.append(line)
    return "\n".join(["Done so far:", *reversed(lines)]) if lines else ""


def format_action(actions: ActionSpace, action: str) -> str:
    """An action on one line; a call looks like `search(query="wells")`."""
    if not actions.tools:
        return " ".join(action.split())
    call = read_call(action)
    given = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return f"{call.name}({given})"


def _format_turn(actions: ActionSpace, turn: PastTurn, with_lost: bool) -> str:
    """What one turn did, its result, and what was not done."""
    between = "; " if actions.tools else actions.separator
    done = between.join(format_action(actions, action) for action in turn.actions) or "nothing"
    result = f" -> {turn.result}" if turn.result else ""
    lost = f": {turn.lost}" if with_lost and turn.lost and not turn.actions else ""
    lost = f" (not done: {turn.lost})" if with_lost and turn.lost and turn.actions else lost
    return " ".join(f"{done}{result}{lost}".split())
