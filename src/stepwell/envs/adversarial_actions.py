"""Adversarial actions: agent texts that no environment of free text or tools may fail on.

    for what, action in list_adversarial_actions(env.description.actions): ...

Free text is passed unchanged. With tools, the same texts are used in place of a call and in every text
argument. There are also calls of unknown tools, with missing arguments or with arguments of wrong types.
`is_call` is False for actions that can never be executed; the environment must report that they were not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from stepwell.core import JSON, ActionSpace, ToolCall, ToolSchema, find_call_problem

MEGABYTE = 2**20
_HOSTILE_TEXTS: dict[str, str] = {
    "nothing": "",
    "blanks": " \t\n ",
    "control characters": "\0\x01\x07\x1b[31m\x7f",
    "line ends": "a\r\nb\u2028c\u2029d\x85e",
    "letters of many scripts": "ж λ 井 مرحبا 😀 e\u0301 \u202eback\u202c \ufeff",
    "SQL": "' OR 1=1; DROP TABLE products; --",
    "full text operators": '"wells* NEAR(a, b) AND NOT -x ^y : (',
    "patterns": "%_%[a-z]*?{0}%s$(x)`x`\\",
    "markup": "<b onclick=x>&amp;<!-- --></b><tool_call></answer>",
    "paths": "../../../etc/passwd?x=1#y",
    "JSON": '{"name": null, "arguments": []}',
    "a very long word": "a" * MEGABYTE,
    "very many words": "well " * (MEGABYTE // 5),
}
_HOSTILE_VALUES: dict[str, JSON] = {
    "null": None,
    "a flag": True,
    "below all": -(10**30),
    "beyond all": 10**30,
    "a tiny number": 5e-324,
    "a list": [[], {}],
    "an object": {"": {"": ""}},
}


class AdversarialAction(NamedTuple):
    """An adversarial action; `is_call` is True if an environment may execute it."""

    what: str
    action: str
    is_call: bool


def list_adversarial_actions(actions: ActionSpace) -> Iterator[AdversarialAction]:
    """Adversarial actions for environments with free text or tools; none if actions are names."""
    if actions.names:
        return
    for what, text in _HOSTILE_TEXTS.items():
        yield AdversarialAction(what, text, is_call=not actions.tools)
    if not actions.tools:
        return
    yield AdversarialAction("no name", '{"arguments": {}}', False)
    yield AdversarialAction("not a number", '{"name": "x", "arguments": {"a": NaN}}', False)
    yield AdversarialAction("half a character", '{"name": "x", "arguments": {"a": "\\ud800"}}', False)
    yield AdversarialAction(
        "a deep nest", '{"name": "x", "arguments": {"a": ' + "[" * 10_000 + "]" * 10_000 + "}}", False
    )
    yield AdversarialAction("an unknown tool", ToolCall("no_such_tool", {}).text, False)
    yield AdversarialAction("a tool with a very long name", ToolCall("x" * MEGABYTE, {}).text, False)
    for tool in actions.tools:
        yield from _list_adversarial_calls(actions, tool)


def _list_adversarial_calls(actions: ActionSpace, tool: ToolSchema) -> Iterator[AdversarialAction]:
    """Calls of one tool: without arguments, with an unknown one, and with bad values in every argument."""
    filled: dict[str, JSON] = {name: "x" for name in tool.properties}
    tried: list[tuple[str, dict[str, JSON]]] = [("no arguments", {}), ("one too many", {**filled, "z": 1})]
    for name in tool.properties:
        tried += [(f"{name}: {what}", {**filled, name: value}) for what, value in _HOSTILE_TEXTS.items()]
        tried += [(f"{name}: {what}", {**filled, name: value}) for what, value in _HOSTILE_VALUES.items()]
    for what, arguments in tried:
        call = ToolCall(tool.name, json.loads(json.dumps(arguments)))
        yield AdversarialAction(f"{tool.name}, {what}", call.text, not find_call_problem(actions.tools, call))
