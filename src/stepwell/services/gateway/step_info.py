"""What a step's `info` holds about its call: just enough to restore a session from the pool.

    build_step_info(...)  ─►  Step.info  ─►  restore_turn(...)

A step holds only what is new: the messages since the turn it continues (in the call's first choice), the
tools where a line starts, the sampled message if it is more than the action's text. Arguments of tool calls
are stored as JSON text, since clients may send numbers that no record can hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.core import JSON, Step, TokenAction, TokenState, ToolCall, ToolSchema
from stepwell.core.arrays import IntArray
from stepwell.rendering import ImagePart, Message, TextPart
from stepwell.services.gateway.history import Branch, History, RecordedTurn, TokenLine


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What the steps of one call have in common."""

    call_id: str
    first: int  # number of the first choice's step
    parent: int | None
    new_messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    branch: Branch | None = None
    is_extended: bool = False
    supersedes: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def build_step_info(call: CallRecord, choice: int, reply: Message | None, text: str) -> dict[str, JSON]:
    """The `info` of one choice. `text` is the action's own text; `reply` is None for a text completion."""
    info: dict[str, JSON] = {"call": call.call_id, "choice": choice, "parent": call.parent}
    if call.is_extended:
        info["extended"] = True
    if reply is not None and (reply.tool_calls or reply.text != text):
        info["reply"] = encode_message(reply)
    if choice:
        return info
    if reply is not None:
        info["messages"] = [encode_message(message) for message in call.new_messages]
    if call.tools and call.parent is None:
        info["tools"] = json.dumps([tool.to_openai() for tool in call.tools])
    if call.branch is not None:
        info["branch"], info["reason"] = call.branch.kind.value, call.branch.reason
    if call.supersedes is not None:
        info["supersedes"] = call.supersedes
    if call.metadata:
        info["metadata"] = dict(call.metadata)
    return info


def restore_turn(history: History, number: int, step: Step) -> RecordedTurn:
    """The turn of a stored step. The history must hold the turns before it."""
    info: Any = step.info
    call = number - int(info["choice"])
    parent = history.turns[info["parent"]] if info["parent"] is not None else None
    first = history.turns.get(call)
    if not first.messages if first is not None else "messages" not in info:  # a text completion
        return RecordedTurn(number, call, info["call"], info["parent"])
    if first is not None:
        before, tools = first.messages[:-1], first.tools
    else:
        before = (*(parent.messages if parent else ()), *map(decode_message, info["messages"]))
        tools = parent.tools if parent else _parse_tools(info.get("tools"))
    reply = decode_message(info["reply"]) if "reply" in info else Message.assistant(_get_text(step))
    turn = RecordedTurn(number, call, info["call"], info["parent"], (*before, reply), tools)
    if isinstance(step.state, TokenState) and isinstance(step.action, TokenAction):
        ids: IntArray = np.concatenate([step.state.prompt_ids, step.action.action_ids])
        turn.line, turn.start, turn.end = TokenLine(ids), step.state.prompt_ids.size, ids.size
        turn.images = step.state.images
        turn.is_extended = bool(info.get("extended"))
    return turn


def encode_message(message: Message) -> dict[str, JSON]:
    """A message as stored in a record; `decode_message` reads it."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    value: dict[str, JSON] = {"role": message.role, "text": "".join(texts)}
    if message.images:
        value["parts"] = [
            {"text": part.text} if isinstance(part, TextPart) else {"image": part.image}
            for part in message.parts
        ]
    if message.tool_calls:
        value["calls"] = json.dumps([[call.id, call.name, call.arguments] for call in message.tool_calls])
    if message.tool_call_id:
        value["answers"] = message.tool_call_id
    if message.name:
        value["name"] = message.name
    return value


def decode_message(value: Any) -> Message:
    calls = [ToolCall(name, arguments, id_) for id_, name, arguments in json.loads(value.get("calls", "[]"))]
    content = value["text"]
    if "parts" in value:
        content = tuple(
            TextPart(part["text"]) if "text" in part else ImagePart(part["image"]) for part in value["parts"]
        )
    return Message(value["role"], content, tuple(calls), value.get("answers", ""), value.get("name", ""))


def _parse_tools(text: str | None) -> tuple[ToolSchema, ...]:
    return tuple(ToolSchema.from_openai(tool) for tool in json.loads(text or "[]"))


def _get_text(step: Step) -> str:
    return step.action.text if isinstance(step.action, TokenAction) else ""
