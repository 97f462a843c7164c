"""Tools an agent may call: their schema (the OpenAI function form), and calls to them.

A call is JSON text, `{"name": ..., "arguments": {...}}`: `ToolCall.text` writes it and `read_call`
reads it. In an environment with tools, an action is one such text.

Invariants
* `read_call` raises `InputError` and nothing else, whatever the text. The message is one sentence
  that an agent can act on. What it accepts is plain JSON: finite numbers, valid characters, at most
  `MAX_DEPTH` levels. So every call that was read can be written, stored and sent.
* `read_call(call.text)` is `call` (ids are not written).
* `find_call_problem` checks a call against the available tools; it is empty if the call is valid.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from stepwell.core.errors import InputError
from stepwell.core.step import JSON
from stepwell.core.text import quote_short

MAX_DEPTH = 32
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """One tool: its name, what it does, and its parameters as a JSON schema object."""

    name: str
    description: str = ""
    parameters: dict[str, JSON] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "_-." for c in self.name):
            raise InputError(f"tool name {self.name!r} must be letters, digits, '_', '-' or '.'")
        if self.parameters.get("type") != "object":
            raise InputError(f"tool {self.name!r}: parameters must be a JSON schema of type 'object'")

    @property
    def properties(self) -> dict[str, Any]:
        """The schema of each argument, by name."""
        found = self.parameters.get("properties")
        return found if isinstance(found, dict) else {}

    @property
    def required(self) -> tuple[str, ...]:
        """The required arguments."""
        found = self.parameters.get("required")
        return tuple(str(name) for name in found) if isinstance(found, list | tuple) else ()

    def problem(self, arguments: dict[str, Any]) -> str:
        """Why a call with these arguments is invalid, in one sentence; empty if it is valid."""
        known = ", ".join(self.properties) or "none"
        for name in self.required:
            if name not in arguments:
                return f"{self.name} needs the argument {name!r}"
        for name, value in arguments.items():
            if name not in self.properties:
                return f"{self.name} has no argument {quote_short(name)}; its arguments are: {known}"
            wrong = _describe_mismatch(self.properties[name], value)
            if wrong:
                return f"{self.name}: argument {name!r} {wrong}"
        return ""

    def to_openai(self) -> dict[str, JSON]:
        """The form chat templates and chat APIs expect."""
        function: dict[str, JSON] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, value: dict[str, Any]) -> ToolSchema:
        """The reverse of `to_openai`; the outer `type` / `function` wrapper may be absent."""
        function = value.get("function", value)
        if not isinstance(function, dict) or "name" not in function:
            raise InputError("a tool needs a 'function' object with a 'name'")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        return cls(function["name"], function.get("description") or "", parameters)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool by an agent. `id` pairs it with its result.

    >>> ToolCall("search", {"query": "wells"}).text
    '{"name": "search", "arguments": {"query": "wells"}}'
    """

    name: str
    arguments: dict[str, JSON]
    id: str = ""

    @property
    def text(self) -> str:
        """The call as JSON, without its id."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


def read_call(text: str) -> ToolCall:
    """Parse a call from JSON text; `InputError` says in one sentence why it is not a call."""
    try:
        return parse_call(read_json(text))
    except ValueError as error:
        raise error if isinstance(error, InputError) else InputError(f"not valid JSON: {error}") from None


def parse_call(value: Any) -> ToolCall:
    """Like `read_call`, for parsed JSON. Arguments may be under `parameters`, and quoted."""
    if not isinstance(value, dict):
        raise InputError(f"a call must be a JSON object, not {type(value).__name__}")
    name, call_id = value.get("name"), value.get("id")
    if not isinstance(name, str) or not name:
        raise InputError('a call needs a "name" that is a non-empty string')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except ValueError as error:
            raise InputError(f'"arguments" is a string that is not valid JSON: {error}') from None
    if not isinstance(arguments, dict):
        raise InputError('"arguments" must be a JSON object')
    call_id = call_id if isinstance(call_id, str) else ""
    _check_plain([name, call_id, arguments])
    return ToolCall(name, arguments, call_id)


def find_call_problem(tools: Sequence[ToolSchema], call: ToolCall) -> str:
    """Why `call` is invalid for `tools`, in one sentence; empty if it is valid."""
    for tool in tools:
        if tool.name == call.name:
            return tool.problem(call.arguments)
    known = ", ".join(tool.name for tool in tools) or "none"
    return f"there is no tool {quote_short(call.name)}; the tools are: {known}"


def draw_random_call(tools: Sequence[ToolSchema], rng: random.Random) -> ToolCall:
    """A valid call with random arguments, for random play."""
    tool = rng.choice(tools)
    return ToolCall(tool.name, {name: _draw_value(schema, rng) for name, schema in tool.properties.items()})


def read_json(text: str) -> Any:
    """`json.loads` that fails only with `ValueError`, and refuses NaN and infinities."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def refuse_constant(name: str) -> NoReturn:
    """For `json`: refuse NaN and infinities, which are not JSON."""
    raise ValueError(f"{name} is not a JSON number")


def _check_plain(value: Any) -> None:
    """Refuse values that cannot be written as JSON in UTF-8."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        for item in level:
            if isinstance(item, float) and not math.isfinite(item):
                raise InputError(f"{item} is not a JSON number")
            if isinstance(item, str):
                _check_characters(item)
        level = [inner for item in level for inner in _iter_children(item)]
        if not level:
            return
    raise InputError(f"a call may be nested at most {MAX_DEPTH} levels deep")


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("a text contains half of a surrogate pair, which is not a character") from None


def _iter_children(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        yield from item.keys()
        yield from item.values()
    elif isinstance(item, list):
        yield from item


def _describe_mismatch(schema: Any, value: Any) -> str:
    """How `value` violates the subset of JSON schema that tools use; empty if it does not."""
    if not isinstance(schema, dict):
        return ""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    allowed = tuple(kind for name in kinds for kind in _TYPES.get(name, ()))
    is_flag = isinstance(value, bool) and bool not in allowed  # in Python a bool is also an int
    if kinds and (is_flag or not isinstance(value, allowed)):
        return f"must be of type {' or '.join(kinds)}, not {_name_type(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", math.inf):
            return f"has {len(value)} items, at most {schema['maxItems']} are allowed"
        inner = (_describe_mismatch(schema.get("items"), item) for item in value)
        return next((f"has an item that {wrong}" for wrong in inner if wrong), "")
    if isinstance(value, str) and len(value) > schema.get("maxLength", math.inf):
        return f"is {len(value)} characters long, at most {schema['maxLength']} are allowed"
    if isinstance(value, int | float):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:
            return f"is {quote_short(str(value))}, outside {low} to {high}"
    return ""


def _draw_value(schema: Any, rng: random.Random) -> JSON:
    if not isinstance(schema, dict):
        schema = {}
    if "enum" in schema:
        return rng.choice(schema["enum"])  # type: ignore[no-any-return]
    kind = schema.get("type", "string")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind in ("integer", "number"):
        low = schema.get("minimum", 0)
        return rng.randint(low, max(low, schema.get("maximum", low + 9)))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [_draw_value(schema.get("items"), rng)]
    if kind == "object":
        return {name: _draw_value(inner, rng) for name, inner in schema.get("properties", {}).items()}
    letters = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 8)))
    return None if kind == "null" else letters[: schema.get("maxLength", 8)]


def _name_type(value: Any) -> str:
    return next((name for name, kinds in _TYPES.items() if type(value) in kinds), type(value).__name__)
