"""Chats from a file as demonstrations: one step per assistant turn, so that only those are learnt.

    {"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}
    {"messages": [...], "tools": [{"type": "function", "function": {...}}]}

The form is that of OpenAI's chat API, tool calls and results included; files are what `data/rows.py` reads.
A step's state is the exact prompt that the run's renderer writes before the turn. Its action is what the chat
template writes for the turn, up to the token that ends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stepwell.core import (
    ConfigError,
    ContextLengthError,
    FinishReason,
    InputError,
    RenderError,
    Sampled,
    Sampling,
    Status,
    Step,
    Task,
    TokenAction,
    ToolCall,
    ToolSchema,
    Trajectory,
)
from stepwell.core.versions import VersionSpan
from stepwell.data.rows import name_source, read_rows
from stepwell.rendering import Message, Renderer

_ROLES = ("system", "user", "assistant", "tool")
_NO_LOGPROBS = np.zeros(0, dtype=np.float32)


def read_chats(source: str, renderer: Renderer, setting: str) -> list[Trajectory]:
    """Every chat of a source as a trajectory; `ConfigError` names the line of a bad one."""
    chats = []
    for place, row in read_rows(source, setting):
        try:
            messages, tools = read_messages(row), read_tools(row)
            steps = list(_make_steps(messages, tools, renderer))
        except (InputError, RenderError, ContextLengthError) as error:
            raise ConfigError(f"{setting}: {source}, {place}: {error}") from error
        task = Task(name_source(source), {"place": place})
        chats.append(Trajectory(task, steps, Status.SUCCESS))
    if not chats:
        raise ConfigError(f"{setting}: {source} holds no chats")
    return chats


def count_chats(source: str, setting: str) -> int:
    """How many chats a source holds, each checked without a tokenizer."""
    count = 0
    for place, row in read_rows(source, setting):
        try:
            read_messages(row), read_tools(row)
        except InputError as error:
            raise ConfigError(f"{setting}: {source}, {place}: {error}") from error
        count += 1
    return count


def read_messages(row: dict[str, Any]) -> tuple[Message, ...]:
    """The messages of one chat, checked."""
    given = row.get("messages")
    if not isinstance(given, list) or not given:
        raise InputError('there is no list "messages"; write {"messages": [{"role": ..., "content": ...}]}')
    messages = tuple(_read_message(number, one) for number, one in enumerate(given, start=1))
    if not any(message.role == "assistant" for message in messages):
        raise InputError("no message has the role assistant, so there is nothing to learn")
    if messages[0].role == "assistant":
        raise InputError("the first message is the assistant's; it must answer a message")
    return messages


def read_tools(row: dict[str, Any]) -> tuple[ToolSchema, ...]:
    """The tools of one chat."""
    given = row.get("tools") or []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise InputError("tools must be a list of objects in OpenAI's form")
    return tuple(ToolSchema.from_openai(one) for one in given)


def _read_message(number: int, given: Any) -> Message:
    where = f"message {number}"
    if not isinstance(given, dict) or given.get("role") not in _ROLES:
        raise InputError(f"{where} needs a role: {', '.join(_ROLES)}")
    content = given.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = tuple(_read_tool_call(where, one) for one in given.get("tool_calls") or [])
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise InputError(f"{where}: content must be text, got {content!r}")
    if given["role"] == "assistant" and not content and not calls:
        raise InputError(f"{where} is empty; an assistant's turn needs text or tool calls")
    ids = {"tool_call_id": str(given.get("tool_call_id") or ""), "name": str(given.get("name") or "")}
    return Message(given["role"], content, calls, **ids)


def _read_tool_call(where: str, given: Any) -> ToolCall:
    function = given.get("function", given) if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError(f"{where}: a tool call needs a function with a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise InputError(f"{where}: arguments of {function['name']} are not JSON ({error})") from None
    if not isinstance(arguments, dict):
        raise InputError(f"{where}: arguments of {function['name']} must be an object")
    return ToolCall(function["name"], arguments, str(given.get("id") or ""))


def _make_steps(
    messages: Sequence[Message], tools: Sequence[ToolSchema], renderer: Renderer
) -> Iterator[Step]:
    for number, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = tuple(messages[:number])
        rendered = renderer.start(before, tools)
        ids = _encode_turn(renderer, before, message, tools)
        action = TokenAction(np.array(ids, dtype=np.int32), renderer.read_text(ids))
        sampling = Sampling(seed=0, finish_reason=FinishReason.GIVEN)
        step = Sampled(action, _NO_LOGPROBS, sampling, VersionSpan.at(0)).step(rendered.state)
        step.assign_reward({"task": 0.0})
        yield step


def _encode_turn(
    renderer: Renderer, before: tuple[Message, ...], message: Message, tools: Sequence[ToolSchema]
) -> list[int]:
    """What the template writes for a turn, up to the token that ends it."""
    template = renderer.template
    prompt = template.render_text(before, tools, prompt=True)
    whole = template.render_text((*before, message), tools, prompt=False)
    if not whole.startswith(prompt):
        raise RenderError("the chat template does not write this turn after its prompt; use another template")
    ids = template.encode_after(whole[len(prompt) :])
    ends = [place for place, token in enumerate(ids) if token in renderer.end_ids]
    return ids[: ends[-1] + 1] if ends else [*ids, renderer.end_ids[0]]
