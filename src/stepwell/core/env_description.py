"""What agents know about an environment, as plain data.

An environment describes itself under its current settings. `guide` contains only true statements: a lake that
is not slippery is not called slippery. Agents build prompts from the description and parse replies with it,
so they do not depend on any specific environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.core.errors import InputError
from stepwell.core.state_vocabulary import StateVocabulary
from stepwell.core.tools import ToolSchema, read_call

HISTORY_LINE_CHARS = 240
"""The longest line about one past turn, unless an environment asks for another."""


class StateForm(StrEnum):
    """How a state is written as text, by an environment (the truth) or by an agent (its belief)."""

    NATURAL_LANGUAGE = "natural_language"
    SYMBOLIC = "symbolic"
    STRUCTURED = "structured"


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """What an agent may do in one turn: up to `max_per_turn` of `names` or calls of `tools`, else one text.

    With tools, an action is the JSON of one call (`ToolCall.text`), and the calls of a turn are executed
    together. `answer` may name a tool with a single text argument. Agents do not see it as a tool: they write
    `<answer>text</answer>` instead of calls, which calls `answer` with that text.

    >>> ActionSpace(("Up", "Down"), max_per_turn=3).is_text
    False
    """

    names: tuple[str, ...] = ()
    max_per_turn: int = 1
    separator: str = ","
    tools: tuple[ToolSchema, ...] = ()
    answer: str = ""

    def __post_init__(self) -> None:
        self._check_tools()
        if isinstance(self.names, str):
            raise InputError(
                'actions.names must be a list of names, such as ("Up", "Down") or ("Up",), '
                f"got {self.names!r}"
            )
        if self.max_per_turn < 1:
            raise InputError(f"actions.max_per_turn must be at least 1, got {self.max_per_turn}")
        if self.is_text and self.max_per_turn != 1:
            raise InputError("actions.max_per_turn must be 1 if actions are free text")
        if len({name.casefold() for name in self.names}) != len(self.names):
            raise InputError(f"actions.names are not distinct: {', '.join(self.names)}")
        if any(self.separator in name or name != name.strip() or not name for name in self.names):
            raise InputError(
                f"actions.names must not contain {self.separator!r} or surrounding blanks: {self.names}"
            )

    @property
    def is_text(self) -> bool:
        """Whether an action is free text."""
        return not self.names and not self.tools

    @property
    def callable_tools(self) -> tuple[ToolSchema, ...]:
        """The tools that agents see."""
        return tuple(tool for tool in self.tools if tool.name != self.answer)

    @property
    def answer_argument(self) -> str:
        """The argument of the tool `answer` that gets the text between answer tags; empty without one."""
        return next((tool.required[0] for tool in self.tools if tool.name == self.answer), "")

    def first_turn(self, plan: Sequence[str]) -> list[str]:
        """The actions of a plan that form its first turn: as many as allowed; an answer is always alone."""
        turn = list(plan[: self.max_per_turn])
        if not self.answer:
            return turn
        ends = (place for place, action in enumerate(turn) if read_call(action).name == self.answer)
        return turn[: max(next(ends, len(turn)), 1)]

    def _check_tools(self) -> None:
        if self.names and self.tools:
            raise InputError("actions are either names or tool calls; leave names or tools empty")
        known = [tool.name for tool in self.tools]
        if len(set(known)) != len(known):
            raise InputError(f"actions.tools are not distinct: {', '.join(known)}")
        if not self.answer:
            return
        tool = next((tool for tool in self.tools if tool.name == self.answer), None)
        if tool is None:
            raise InputError(f"actions.answer is {self.answer!r}, which is not one of the tools")
        kinds = [tool.properties.get(name, {}).get("type") for name in tool.required]
        if kinds != ["string"]:
            raise InputError(f"actions.answer: {self.answer!r} must require exactly one argument, a string")


@dataclass(frozen=True, slots=True)
class ExampleTurn:
    """One turn as an agent could write it, as an example for the prompt."""

    observation: str
    reasoning: str
    prediction: str
    answer: str


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """An environment as its agents see it.

    `guide` holds the goal, the symbols and the rules. `examples` has one turn for each state form of the
    environment. An episode that reaches `max_turns` is a failure. Judges use `vocabulary` to check what
    agents say about states; agents do not see it. `history_line_chars` is the longest line about one past
    turn in a prompt that lists them.
    """

    name: str
    guide: str
    actions: ActionSpace
    max_turns: int
    examples: Mapping[StateForm, ExampleTurn] = field(default_factory=dict)
    vocabulary: StateVocabulary | None = None
    history_line_chars: int = HISTORY_LINE_CHARS

    def __post_init__(self) -> None:
        if not isinstance(self.actions, ActionSpace):
            raise InputError(
                f'actions must be an ActionSpace, such as ActionSpace(("Up", "Down")), got {self.actions!r}'
            )
        if not isinstance(self.max_turns, int) or self.max_turns < 1:
            raise InputError(f"max_turns must be a whole number, at least 1, got {self.max_turns!r}")
        if self.history_line_chars < 16:
            raise InputError(f"history_line_chars must be at least 16, got {self.history_line_chars}")
