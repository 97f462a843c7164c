"""Replies of agents: written in the exact requested form, read leniently and strictly at once.

One pass over the text gives both readings. The lenient one decides what is done: it takes the
last answer, whatever surrounds it, and ignores blanks, line breaks and capitals in tags and
names. The strict one decides the format reward: every tag of the strategy in order and as in
the prompt, only blanks between tags, names as in the prompt, no more actions than allowed.

Invariants
* `is_strict` exactly when `problem` is empty. `problem` says why nothing is done, if so, else
  the first mistake.
* With one unknown action name, nothing is done. Of too many known ones, the first are done.
* `lost` says which part of the reply was not done, and why; it is empty if all was done.
* If actions are tool calls, they replace the answer tag: see `calls.py`. The field `answer` then
  holds the JSON of each call on its own line.
* Reading never raises. What `write_reply` wrote is strict and reads back the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stepwell.agents.calls import ParsedCalls, cut_thinking, read_calls, write_calls
from stepwell.agents.strategy import Field, Strategy, TagMark
from stepwell.core.env_description import ActionSpace
from stepwell.core.errors import InputError
from stepwell.core.text import quote_short
from stepwell.core.tools import read_call


@dataclass(frozen=True, slots=True)
class Reply:
    """The contents of a reply. A field is None if its tags are missing or not requested."""

    actions: tuple[str, ...] = ()
    is_strict: bool = False
    observation: str | None = None
    reasoning: str | None = None
    prediction: str | None = None
    problem: str = ""
    lost: str = ""
    num_lost: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tag in a reply, and the text from it to the next tag."""

    literal: str
    name: str
    is_closing: bool
    after: str


def read_reply(strategy: Strategy, actions: ActionSpace, text: str) -> Reply:
    """Read `text` as a reply in the form of `strategy`, for an environment with `actions`."""
    thinking, rest = cut_thinking(strategy, text) if actions.tools else (text, "")
    before, pieces = _find_tags(strategy, thinking)
    fields = {mark.inside: _find_content(mark, pieces) for mark in strategy.marks if mark.inside}
    if actions.tools:
        read, marks = read_calls(actions, rest), strategy.marks[:-2]
    else:
        read, marks = _read_named(strategy, actions, fields[Field.ANSWER]), strategy.marks
    problem = (_find_form_problem(marks, before, pieces) if read.done else "") or read.lost or read.misspelled
    return Reply(
        read.done,
        not problem,
        fields.get(Field.OBSERVATION),
        fields.get(Field.REASONING),
        fields.get(Field.PREDICTION),
        problem,
        read.lost,
        read.num_lost,
    )


def write_reply(strategy: Strategy, actions: ActionSpace, fields: Mapping[Field, str]) -> str:
    """A strict reply with `fields`; fields without a tag in the strategy are left out."""
    written: list[str] = []
    for mark in strategy.marks[:-2] if actions.tools else strategy.marks:
        content = fields.get(mark.inside, "").strip() if mark.inside else ""
        if strategy.pattern.search(content):
            raise InputError(f"{mark.inside} contains a tag of {strategy.name}: {content[:60]!r}; remove it")
        written += [mark.text, content]
    answer = fields.get(Field.ANSWER, "")
    if actions.tools:
        return "".join(written) + write_calls(actions, answer.split("\n") if answer else [])
    _, problem = _read_answer(actions, answer)
    if problem:
        raise InputError(f"answer cannot be written: {problem}")
    return "".join(written)


def join_actions(actions: ActionSpace, names: Sequence[str]) -> str:
    """The answer that does `names`."""
    if actions.is_text and len(names) != 1:
        raise InputError(f"actions: {len(names)} given; with free-text actions a turn has exactly one")
    if actions.tools:
        return "\n".join(read_call(name).text for name in names)
    return actions.separator.join(names)


def _find_tags(strategy: Strategy, text: str) -> tuple[str, list[_Piece]]:
    """The text before any tag, and the tags with the text after each."""
    found = list(strategy.pattern.finditer(text))
    starts = [*(match.start() for match in found), len(text)]
    pieces = [
        _Piece(match[0], match[2].lower(), bool(match[1]), text[match.end() : end])
        for match, end in zip(found, starts[1:], strict=True)
    ]
    return text[: starts[0]], pieces


def _find_content(mark: TagMark, pieces: Sequence[_Piece]) -> str | None:
    """The text of the last pair of tags of that name; None without a closed pair."""
    for opening, closing in zip(pieces[-2::-1], pieces[:0:-1], strict=True):
        if opening.name == closing.name == mark.name and closing.is_closing and not opening.is_closing:
            return opening.after.strip()
    return None


def _read_named(strategy: Strategy, actions: ActionSpace, answer: str | None) -> ParsedCalls:
    """Read an answer of action names or free text."""
    if answer is None:
        return ParsedCalls((), _describe_missing_answer(strategy))
    done, problem = _read_answer(actions, answer)
    num_said = len(_split_answer(actions, answer)) if actions.names else 1
    is_all = len(done) == num_said
    return ParsedCalls(done, "" if is_all else problem, num_said - len(done), problem if is_all else "")


def _describe_missing_answer(strategy: Strategy) -> str:
    opening, closing = strategy.marks[-2:]
    return f"there is no {opening.text}...{closing.text}"


def _find_form_problem(marks: Sequence[TagMark], before: str, pieces: Sequence[_Piece]) -> str:
    """The first wrong tag, or the first text between tags; empty if there is none."""
    if before.strip():
        return f"text before {marks[0].text}: {quote_short(before)}"
    for index, mark in enumerate(marks):
        if index >= len(pieces):
            return f"{mark.text} is missing at the end"
        piece = pieces[index]
        if (piece.name, piece.is_closing) != (mark.name, mark.is_closing):
            return f"{mark.text} expected, found {piece.literal}"
        if piece.literal != mark.text:
            return f"{quote_short(piece.literal)} must be written {mark.text}"
        if mark.inside is None and piece.after.strip():
            return f"text after {mark.text}: {quote_short(piece.after)}"
    if len(pieces) > len(marks):
        return f"{pieces[len(marks)].literal} after the end"
    return ""


def _read_answer(actions: ActionSpace, answer: str) -> tuple[tuple[str, ...], str]:
    """The actions to do, and what is wrong with their form."""
    if not answer.strip():
        return (), "the answer is empty"
    if actions.is_text:
        return (answer.strip(),), ""
    known = _normalize_names(actions.names)
    pieces = _split_answer(actions, answer)
    read = [known.get(_normalize_name(piece)) for piece in pieces]
    for piece, name in zip(pieces, read, strict=True):
        if name is None:
            return (), f"{quote_short(piece)} is not an action; known are {', '.join(actions.names)}"
    done = tuple(name for name in read if name is not None)
    if len(done) > actions.max_per_turn:
        return done[: actions.max_per_turn], (
            f"{len(done)} actions, at most {actions.max_per_turn} are done in a turn"
        )
    respelled = next((p.strip() for p, name in zip(pieces, done, strict=True) if p.strip() != name), None)
    return (
        done,
        "" if respelled is None else f"{respelled!r} must be written {known[_normalize_name(respelled)]!r}",
    )


def _split_answer(actions: ActionSpace, answer: str) -> list[str]:
    """The pieces between separators. Several blanks count as one separator; other separators do not."""
    bare = actions.separator.strip()
    if not bare:
        return [piece for piece in answer.split(actions.separator) if piece.strip()]
    return answer.split(actions.separator if any(bare in name for name in actions.names) else bare)


@lru_cache(maxsize=64)
def _normalize_names(names: tuple[str, ...]) -> dict[str, str]:
    return {_normalize_name(name): name for name in names}


def _normalize_name(name: str) -> str:
    """A name without capitals and extra blanks."""
    return " ".join(name.split()).casefold()
