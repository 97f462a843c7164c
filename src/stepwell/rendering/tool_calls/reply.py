"""What a sampled turn held: words, tool calls, and calls that could not be read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from stepwell.core.tools import ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallError:
    """A call that could not be read: why, and the text it was tried on."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The words outside calls, the calls in order, and the failed ones."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    errors: tuple[ToolCallError, ...] = ()


class CallReader:
    """Collects calls and errors while a parser walks over a text."""

    def __init__(self, first_number: int) -> None:
        self._number = first_number
        self.calls: list[ToolCall] = []
        self.errors: list[ToolCallError] = []

    def read(self, text: str) -> None:
        """Take `text` as the JSON of one call."""
        try:
            value = decode_json(text)
        except ValueError as error:
            self.fail(f"not valid JSON: {error}", text)
        else:
            self.take(value, text)

    def take(self, value: Any, text: str) -> None:
        """Take a decoded JSON value as one call; `text` is what an error shows."""
        problem = _problem(value)
        if problem is not None:
            self.fail(problem, text)
            return
        given = value.get("id")
        call_id = given if isinstance(given, str) and given else f"call{self._number:05d}"
        self._number += 1
        self.calls.append(ToolCall(value["name"], _arguments(value), call_id))

    def fail(self, reason: str, text: str) -> None:
        self.errors.append(ToolCallError(reason, text))

    def reply(self, content: str) -> ParsedReply:
        return ParsedReply(content.strip(), tuple(self.calls), tuple(self.errors))


def decode_json(text: str) -> Any:
    """`json.loads` that fails only with `ValueError`, and refuses NaN and infinities."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_json_prefix(text: str) -> tuple[Any, int]:
    """The JSON value at the beginning of `text`, and where it ends."""
    try:
        value, end = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value, end


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _problem(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"a call must be a JSON object, not {type(value).__name__}"
    if not isinstance(value.get("name"), str) or not value["name"]:
        return 'a call needs a "name" that is a non-empty string'
    try:
        arguments = _arguments(value)
    except ValueError as error:
        return f'"arguments" is a string that is not valid JSON: {error}'
    return None if isinstance(arguments, dict) else '"arguments" must be a JSON object'


def _arguments(value: dict[str, Any]) -> Any:
    """An object under either of its two names, also where a model wrote it as a quoted string."""
    found = value.get("arguments", value.get("parameters", {}))
    return decode_json(found) if isinstance(found, str) else found
