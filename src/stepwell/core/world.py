"""The world: what an agent must be told about an environment, as plain data.

An environment describes itself here, under its present settings (`guide` says only what is
true: a lake that is not slippery is not called slippery). Agents build prompts from it and
read answers against it, and so need not know any environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.core.errors import InputError
from stepwell.core.tools import ToolSchema, read_call


class StateForm(StrEnum):
    """How a state is put into words: by an environment (the truth) and by an agent (its belief)."""

    NATURAL_LANGUAGE = "natural_language"
    SYMBOLIC = "symbolic"
    STRUCTURED = "structured"


@dataclass(frozen=True, slots=True)
class Actions:
    """What may be done in one turn: up to `max_per_turn` of `names`, or calls of `tools`; else any one text.

    With tools an action is the JSON of one call (`ToolCall.text`), and the calls of a turn are made
    together. `answer` may name one of them that takes a single text: agents are not told of it as a
    tool but write `<answer>text</answer>` in place of calls, which does `answer` with that text.

    >>> Actions(("Up", "Down"), max_per_turn=3).is_text
    False
    """

    names: tuple[str, ...] = ()
    max_per_turn: int = 1
    separator: str = ","
    tools: tuple[ToolSchema, ...] = ()
    answer: str = ""

    def __post_init__(self) -> None:
        self._check_tools()
        if self.max_per_turn < 1:
            raise InputError(f"actions.max_per_turn must be at least 1, got {self.max_per_turn}")
        if self.is_text and self.max_per_turn != 1:
            raise InputError("actions.max_per_turn must be 1 where actions are free text")
        if len({name.casefold() for name in self.names}) != len(self.names):
            raise InputError(f"actions.names are not distinct: {', '.join(self.names)}")
        if any(self.separator in name or name != name.strip() or not name for name in self.names):
            raise InputError(
                f"actions.names must be free of {self.separator!r} and of blanks around: {self.names}"
            )

    @property
    def is_text(self) -> bool:
        """Whether an action is free text."""
        return not self.names and not self.tools

    @property
    def callable_tools(self) -> tuple[ToolSchema, ...]:
        """The tools that agents are told of."""
        return tuple(tool for tool in self.tools if tool.name != self.answer)

    @property
    def answer_argument(self) -> str:
        """The argument of the tool `answer` that the text between answer tags is; empty without one."""
        return next((tool.required[0] for tool in self.tools if tool.name == self.answer), "")

    def first_turn(self, plan: Sequence[str]) -> list[str]:
        """The actions of a plan that share its first turn: as many as are allowed, an answer alone."""
        turn = list(plan[: self.max_per_turn])
        if not self.answer:
            return turn
        ends = (place for place, action in enumerate(turn) if read_call(action).name == self.answer)
        return turn[: max(next(ends, len(turn)), 1)]

    def _check_tools(self) -> None:
        if self.names and self.tools:
            raise InputError("actions are either names or calls of tools; leave one of them empty")
        known = [tool.name for tool in self.tools]
        if len(set(known)) != len(known):
            raise InputError(f"actions.tools are not distinct: {', '.join(known)}")
        if not self.answer:
            return
        tool = next((tool for tool in self.tools if tool.name == self.answer), None)
        if tool is None:
            raise InputError(f"actions.answer is {self.answer!r}, which is not among the tools")
        kinds = [tool.properties.get(name, {}).get("type") for name in tool.required]
        if kinds != ["string"]:
            raise InputError(f"actions.answer: {self.answer!r} must require exactly one argument, a string")


@dataclass(frozen=True, slots=True)
class Example:
    """One turn as an agent might write it, for the prompt."""

    observation: str
    reasoning: str
    prediction: str
    answer: str


@dataclass(frozen=True, slots=True)
class World:
    """An environment as its agents see it.

    `guide` holds the goal, the symbols and the rules. `examples` shows one turn in each
    state form the world has. A turn limit reached is a failure; `max_turns` says it.
    """

    name: str
    guide: str
    actions: Actions
    max_turns: int
    examples: Mapping[StateForm, Example] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise InputError(f"world.max_turns must be at least 1, got {self.max_turns}")
