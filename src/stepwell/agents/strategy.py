"""Reasoning strategies: what an agent writes before its answer, as a tree of tags.

    no_think                  <answer>
    free_think                <think> <answer>
    grounding                 <think>(<observation> <reasoning>) <answer>
    world_modeling            <think>(<reasoning> <prediction>) <answer>
    grounding_world_modeling  <think>(<observation> <reasoning> <prediction>) <answer>

A strategy is data. Prompts, parser and rewards all read the same tree, so they cannot
disagree. A tag either holds one field of the reply or groups other tags.

Invariants
* No field and no tag name occurs twice in a strategy.
* The last tag holds the answer, and no other does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.core.errors import ConfigError, InputError
from stepwell.core.user_objects import find_object, is_import_path


class Field(StrEnum):
    """The fields of a reply."""

    OBSERVATION = "observation"
    REASONING = "reasoning"
    PREDICTION = "prediction"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Tag:
    """`<name>…</name>` around one field, or around other tags."""

    name: str
    holds: Field | tuple[Tag, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z_]*", self.name):
            raise InputError(f"tag.name is {self.name!r}; use lower-case letters and '_'")

    @property
    def opening(self) -> str:
        return f"<{self.name}>"

    @property
    def closing(self) -> str:
        return f"</{self.name}>"


@dataclass(frozen=True, slots=True)
class TagMark:
    """An opening or closing tag of a strict reply; `inside` is the field whose text comes next."""

    text: str
    name: str
    is_closing: bool
    inside: Field | None


@dataclass(frozen=True)
class Strategy:
    """The tags of a reply in order; `instruction` ends the system prompt.

    >>> STRATEGIES["world_modeling"].skeleton
    '<think><reasoning>...</reasoning><prediction>...</prediction></think><answer>...</answer>'
    """

    name: str
    tags: tuple[Tag, ...]
    instruction: str = ""
    marks: tuple[TagMark, ...] = field(init=False, repr=False)
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        marks = tuple(_iter_marks(self.tags))
        names = [mark.name for mark in marks if not mark.is_closing]
        fields = self.list_mark_fields(marks)
        if len(set(names)) != len(names) or len(set(fields)) != len(fields):
            raise InputError(f"strategy {self.name!r}: a tag or a field occurs twice")
        if not self.tags or self.tags[-1].holds != Field.ANSWER:
            raise InputError(f"strategy {self.name!r}: the last tag must hold the answer")
        object.__setattr__(self, "marks", marks)
        # Blanks and capitals inside a tag are accepted here; the strict check refuses them.
        object.__setattr__(
            self, "pattern", re.compile(rf"<\s*(?:(/)\s*)?({'|'.join(names)})\s*>", re.IGNORECASE | re.ASCII)
        )

    @staticmethod
    def list_mark_fields(marks: tuple[TagMark, ...]) -> tuple[Field, ...]:
        return tuple(mark.inside for mark in marks if mark.inside is not None)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a reply, in order."""
        return self.list_mark_fields(self.marks)

    @property
    def skeleton(self) -> str:
        """The form of a reply, with dots for every field."""
        return "".join(mark.text + ("..." if mark.inside else "") for mark in self.marks)


def _iter_marks(tags: tuple[Tag, ...]) -> Iterator[TagMark]:
    for tag in tags:
        holds = tag.holds
        yield TagMark(tag.opening, tag.name, False, holds if isinstance(holds, Field) else None)
        if not isinstance(holds, Field):
            yield from _iter_marks(holds)
        yield TagMark(tag.closing, tag.name, True, None)


_OBSERVATION = Tag("observation", Field.OBSERVATION)
_REASONING = Tag("reasoning", Field.REASONING)
_PREDICTION = Tag("prediction", Field.PREDICTION)
_ANSWER = Tag("answer", Field.ANSWER)


def _make_thinking(*inside: Tag) -> tuple[Tag, ...]:
    return (Tag("think", inside), _ANSWER)


_ALL = (
    Strategy("no_think", (_ANSWER,)),
    Strategy("free_think", (Tag("think", Field.REASONING), _ANSWER)),
    Strategy("grounding", _make_thinking(_OBSERVATION, _REASONING)),
    Strategy("world_modeling", _make_thinking(_REASONING, _PREDICTION)),
    Strategy("grounding_world_modeling", _make_thinking(_OBSERVATION, _REASONING, _PREDICTION)),
)

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}


def find_strategy(name: str | Strategy) -> Strategy:
    """A strategy by its name or `module:NAME`; a `Strategy` is returned unchanged."""
    if isinstance(name, Strategy):
        return name
    if name in STRATEGIES:
        return STRATEGIES[name]
    if not is_import_path(name):
        raise InputError(f"strategy is {name!r}; it must be one of {', '.join(STRATEGIES)}, or module:NAME")
    found = find_object(name, f"agent.strategy {name!r}")
    if not isinstance(found, Strategy):
        raise ConfigError(
            f"agent.strategy {name!r} is a {type(found).__name__}; it must be a stepwell.agents.Strategy"
        )
    return found
