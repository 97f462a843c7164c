"""Tools an agent may call: their schema (the OpenAI function form) and calls to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepwell.core.errors import InputError
from stepwell.core.step import JSON


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
    """One call of a tool by an agent. `id` pairs it with its result."""

    name: str
    arguments: dict[str, JSON]
    id: str = ""
