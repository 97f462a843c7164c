"""Messages as chat APIs send and read them: text, pictures as data URLs, tools and calls of them.

    Message ─► api_message ─► JSON                what the model is told
    ChatReply ─► read_said ─► Said                what it answered

An agent reads tool calls in one spelling (`agents/calls.py`). Calls that come in an API's own field are
written in that spelling behind the text, so that one reader judges every model, ours and others'.
A call whose arguments are not JSON is kept as it was said: the reader says what is wrong with it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.core import (
    JSON,
    FinishReason,
    InputError,
    Sampling,
    State,
    Step,
    ToolCall,
    read_call,
)
from stepwell.core.arrays import AnyArray
from stepwell.envs.remote.wire import png_bytes
from stepwell.rendering import ImagePart, Message
from stepwell.rewards.chat_client import ChatReply

CALL = "tool_call"
_TOGETHER = "The results of all calls of this turn are told together."


@dataclass(frozen=True, slots=True)
class Said:
    """An outside model's answer: as its agent reads it, and as it stands in the conversation."""

    text: str
    message: Message
    sampling: Sampling
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def step(self, state: State) -> Step:
        """The step of the record: nothing of it is known in tokens."""
        return Step.from_text(self.text, self.sampling)

    @property
    def note(self) -> dict[str, JSON]:
        """What a step's `info` keeps of it."""
        usage: dict[str, JSON] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        return {"finish": self.finish, "usage": usage}


def read_said(reply: ChatReply, sampling: Sampling) -> Said:
    """An answer, with its calls written behind its text. `InputError` where the message is malformed."""
    text = reply.text or ""
    if not text and isinstance(refusal := reply.message.get("refusal"), str):
        text = refusal
    raw = reply.message.get("tool_calls") or []
    if not isinstance(raw, list):
        raise InputError("tool_calls of the answer is no list")
    spoken = [_spoken(item, number) for number, item in enumerate(raw)]
    message = Message.assistant(text, [call for _, call in spoken])
    whole = text + "".join(f"<{CALL}>{words}</{CALL}>" for words, _ in spoken)
    return Said(
        whole,
        message,
        Sampling(sampling.temperature, sampling.top_p, sampling.seed, FinishReason.GIVEN),
        reply.finish,
        reply.prompt_tokens,
        reply.completion_tokens,
    )


def _spoken(item: Any, number: int) -> tuple[str, ToolCall]:
    """One call as its agent reads it, and as it goes back to the API (without arguments no API takes)."""
    function = item.get("function") if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"tool_calls[{number}] of the answer has no function with a name")
    arguments = function.get("arguments") or "{}"
    name, given = function["name"], item.get("id")
    call_id = given if isinstance(given, str) and given else f"call_{number}"
    words = json.dumps({"name": name, "arguments": arguments}).replace("<", "\\u003c")
    try:
        call = read_call(words)
    except InputError:
        return words, ToolCall(name, {}, call_id)
    return call.text.replace("<", "\\u003c"), ToolCall(call.name, call.arguments, call_id)


def answered(calls: Sequence[ToolCall], told: Message) -> tuple[Message, ...]:
    """What follows a turn with calls: every call gets a result, and what the world told stands in the last.

    Pictures cannot stand in results, so what holds some is told as a user's message behind them.
    """
    *others, last = calls
    together = [Message.tool(_TOGETHER, call) for call in others]
    if told.images:
        return (*together, Message.tool(_TOGETHER, last), told)
    return (*together, Message.tool(told.text, last))


def data_url(picture: AnyArray) -> str:
    """A picture as PNG inside a URL."""
    return f"data:image/png;base64,{base64.b64encode(png_bytes(picture)).decode('ascii')}"


def api_message(message: Message, picture_url: Callable[[str], str]) -> dict[str, Any]:
    """A message as JSON for the API."""
    value: dict[str, Any] = {"role": message.role}
    if message.images:
        value["content"] = [
            {"type": "image_url", "image_url": {"url": picture_url(part.image)}}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text}
            for part in message.parts
        ]
    else:
        value["content"] = message.text
    if message.tool_calls:
        value["tool_calls"] = [_api_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def _api_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def message_note(message: Message) -> dict[str, JSON]:
    """A message as a step's `info` keeps it; pictures by name."""
    texts = [part.text for part in message.parts if not isinstance(part, ImagePart)]
    value: dict[str, JSON] = {"role": message.role, "content": "".join(texts)}
    if message.images:
        value["images"] = list(message.images)
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value
