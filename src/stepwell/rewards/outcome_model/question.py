"""The question about an episode: its task, what was done, and what was seen at the end.

    trajectory ─► read_question ─► OutcomeQuestion ─► write_question (cut to fit) ─► text for a model

A clean episode that served another task looks like a success, and a small model hardly compares a task's
words with what was done. So the question ends with the words of the task that are not in the actions, and
with those that are not in the last observation either.

Only what the agent saw and did is in it; neither the reward nor the status. An environment may still
tell its verdict in the last observation, as the shop does with its score.

Invariants
* The text depends on the question, the limits and the template's version alone. The version is stored with
  every trained model. A change of the words below needs a new version.
* A text fits into `max_tokens`. An action longer than `action_chars` loses its end. What is too long is cut
  in this order: the oldest actions, until the last observation has `page_tokens` of its own; then the end of
  the last observation; then the instruction.
  The words that were not used are found before anything is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.core import ArrayAction, ArrayState, Step, Trajectory
from stepwell.core.errors import InputError
from stepwell.core.tools import read_call

TEMPLATE_VERSION = 2
YES, NO = "YES", "NO"
DEFAULT_ACTION_CHARS = 240
_ASK = f"Is the task done? {YES} or {NO}."
_MAX_NUMBERS = 64  # of an array that is written as text
_MAX_UNUSED = 16  # words in each list of those that were not used
_WORD = re.compile(r"[^\W_]+")

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class OutcomeQuestion:
    """An episode in words. `actions` has one line per turn."""

    instruction: str
    actions: tuple[str, ...]
    last_view: str


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The longest text, what of it is kept for the last observation while there are older actions, and the
    longest action."""

    max_tokens: int = 1024
    page_tokens: int = 640
    action_chars: int = DEFAULT_ACTION_CHARS

    def __post_init__(self) -> None:
        if self.action_chars < 8:
            raise InputError(f"action_chars is {self.action_chars}; give at least 8")
        if not 64 <= self.page_tokens + 64 <= self.max_tokens:
            raise InputError(
                f"max_tokens is {self.max_tokens} and page_tokens {self.page_tokens}; page_tokens must leave "
                "at least 64 tokens of max_tokens for the task and the actions"
            )


def read_question(trajectory: Trajectory, action_chars: int = DEFAULT_ACTION_CHARS) -> OutcomeQuestion:
    """What a judge is asked about an episode; `InputError` if it holds no step."""
    steps = [step for step in trajectory.steps if not step.is_summary]
    if not steps:
        raise InputError(f"trajectory {trajectory.id} has no steps; there is nothing to judge")
    info, last = trajectory.info, steps[-1].state
    instruction = trajectory.task.instruction or str(info.get("first_observation", ""))
    view = str(info.get("last_observation", ""))
    if trajectory.task.instruction:  # some environments repeat it in every observation
        view = view.replace(trajectory.task.instruction, "...")
    if isinstance(last, ArrayState):
        instruction = instruction or last.instruction
        view = view or _write_arrays(last.arrays)
    return OutcomeQuestion(instruction, tuple(_write_turn(step, action_chars) for step in steps), view)


def write_question(question: OutcomeQuestion, limits: TextLimits, count: CountTokens) -> str:
    """The question as text of at most `max_tokens`, as `count` counts them."""
    lines = [f"{number}. {text}" for number, text in enumerate(question.actions, start=1)]
    view, ending = question.last_view, f"{_list_unused_words(question)}{_ASK}"
    wanted, first = min(limits.page_tokens, count(view)), 0
    while True:  # drop the oldest until the last observation has its share
        room = limits.max_tokens - count(_join_parts(question.instruction, lines, first, "", ending))
        if room >= wanted or first >= len(lines) - 1:
            break
        first += 1
    view = _cut_text(view, max(room, 0), count)
    whole = _join_parts(question.instruction, lines, first, view, ending)
    if count(whole) <= limits.max_tokens:
        return whole
    rest = limits.max_tokens - count(_join_parts("", lines, first, "", ending))
    instruction = _cut_text(question.instruction, max(rest, 0), count)
    return _cut_middle(_join_parts(instruction, lines, first, "", ending), limits.max_tokens, count)


def _join_parts(instruction: str, lines: Sequence[str], first: int, view: str, ending: str) -> str:
    left_out = [f"({first} earlier left out)"] if first else []
    done = "\n".join([*left_out, *lines[first:]])
    return f"Task: {instruction}\nDone:\n{done}\nSeen at the end:\n{view}\n{ending}"


def _list_unused_words(question: OutcomeQuestion) -> str:
    """The words of the task that are not in the actions, and those that were not seen at the end either."""
    used = _find_words(" ".join(question.actions))
    seen = _find_words(question.last_view)
    unused = [word for word in _find_words(question.instruction) if word not in used]
    unseen = [word for word in unused if word not in seen]
    return (
        f"Not in the actions: {' '.join(unused[:_MAX_UNUSED])}\n"
        f"Nor seen at the end: {' '.join(unseen[:_MAX_UNUSED])}\n"
    )


def _find_words(text: str) -> dict[str, None]:
    """The words of a text, each once, in order and in small letters."""
    return dict.fromkeys(_WORD.findall(text.lower()))


def _cut_text(text: str, room: int, count: CountTokens) -> str:
    """The longest beginning of a text that has at most `room` tokens, less a few for how pieces join."""
    room -= 4
    if room <= 0:
        return ""
    if count(text) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= room else (low, middle - 1)
    return text[:low]


def _cut_middle(text: str, room: int, count: CountTokens) -> str:
    """Shorten a text whose last action alone is too long: cut the action's end, keep the question."""
    if count(text) <= room:
        return text
    return f"{_cut_text(text, room - count(_ASK) - 4, count)}\n{_ASK}"


def _write_turn(step: Step, max_chars: int) -> str:
    """What one turn did and its result, on one line."""
    info: Any = step.info
    if isinstance(step.action, ArrayAction):
        done = " ".join(f"{value:.2f}" for value in step.action.chunk.reshape(-1)[:8])
    elif "actions" in info:
        done = "; ".join(_write_action(action) for action in info["actions"]) or "nothing"
    else:
        done = step.action.text
    result = f" -> {info['result']}" if info.get("result") else ""
    line = " ".join(f"{done}{result}".split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def _write_action(action: str) -> str:
    """An action as text; a tool call as `search(query="wells")`."""
    if not action.startswith("{"):
        return action
    try:
        call = read_call(action)
    except (InputError, ValueError, KeyError):
        return action
    given = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return f"{call.name}({given})"


def _write_arrays(arrays: dict[str, Any]) -> str:
    """The small arrays of a robot's state as numbers; images have no words and are left out."""
    lines = []
    for name, value in sorted(arrays.items()):
        flat = np.asarray(value).reshape(-1)
        if flat.size <= _MAX_NUMBERS:
            lines.append(f"{name}: {' '.join(f'{number:.3f}' for number in flat)}")
    return "\n".join(lines)
