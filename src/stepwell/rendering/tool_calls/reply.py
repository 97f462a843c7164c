"""The contents of a sampled turn: text, tool calls, and calls that could not be parsed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from stepwell.core.errors import InputError
from stepwell.core.tools import ToolCall, parse_call, read_json, refuse_constant


@dataclass(frozen=True, slots=True)
class ToolCallError:
    """A call that could not be parsed: the reason and the text."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The text outside calls, the calls in order, and the failed calls."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    errors: tuple[ToolCallError, ...] = ()


class CallReader:
    """Collects calls and errors while a parser reads a text."""

    def __init__(self, first_number: int) -> None:
        self._number = first_number
        self.calls: list[ToolCall] = []
        self.errors: list[ToolCallError] = []

    def read_call(self, text: str) -> None:
        """Parse `text` as the JSON of one call."""
        try:
            value = read_json(text)
        except ValueError as error:
            self.add_error(f"not valid JSON: {error}", text)
        else:
            self.take_call(value, text)

    def take_call(self, value: Any, text: str) -> None:
        """Read a decoded JSON value as one call; errors quote `text`."""
        try:
            call = parse_call(value)
        except InputError as error:
            self.add_error(str(error), text)
            return
        self.calls.append(replace(call, id=call.id or f"call{self._number:05d}"))
        self._number += 1

    def add_error(self, reason: str, text: str) -> None:
        self.errors.append(ToolCallError(reason, text))

    def build_reply(self, content: str) -> ParsedReply:
        return ParsedReply(content.strip(), tuple(self.calls), tuple(self.errors))


def decode_json_prefix(text: str) -> tuple[Any, int]:
    """The JSON value at the beginning of `text`, and where it ends."""
    try:
        value, end = json.JSONDecoder(parse_constant=refuse_constant).raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value, end
