"""Messages in the JSON of chat APIs: text, images as data URLs, tools and tool calls.

    Message   ─► encode_api_message ─► JSON             to the model
    ChatReply ─► read_outside_reply ─► OutsideReply     from the model

An agent reads tool calls in one format (`agents/calls.py`). Calls in an API's own field are appended to the
text in that format, so that one parser judges every model. A call whose arguments are not JSON is kept
unchanged: the parser says what is wrong with it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.core import JSON, FinishReason, InputError, Sampling, State, Step, ToolCall, read_call
from stepwell.core.arrays import AnyArray
from stepwell.envs.remote.wire import encode_png
from stepwell.rendering import ImagePart, Message
from stepwell.rewards.chat_client import ChatReply

CALL = "tool_call"
_TOGETHER = "The results of all calls of this turn are told together."


@dataclass(frozen=True, slots=True)
class OutsideReply:
    """A reply of an outside model: the text that its agent reads, and the message for the conversation."""

    text: str
    message: Message
    sampling: Sampling
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def step(self, state: State) -> Step:
        """The step to record. Its tokens are unknown."""
        return Step.from_text(self.text, self.sampling)

    @property
    def note(self) -> dict[str, JSON]:
        """What a step's `info` keeps of the reply."""
        usage: dict[str, JSON] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        return {"finish": self.finish, "usage": usage}


def read_outside_reply(reply: ChatReply, sampling: Sampling) -> OutsideReply:
    """A reply with its calls appended to its text. `InputError` if the message is malformed."""
    text = reply.text or ""
    if not text and isinstance(refusal := reply.message.get("refusal"), str):
        text = refusal
    raw = reply.message.get("tool_calls") or []
    if not isinstance(raw, list):
        raise InputError("tool_calls of the answer is not a list")
    calls = [_read_call(item, number) for number, item in enumerate(raw)]
    message = Message.assistant(text, [call for _, call in calls])
    whole = text + "".join(f"<{CALL}>{words}</{CALL}>" for words, _ in calls)
    return OutsideReply(
        whole,
        message,
        Sampling(sampling.temperature, sampling.top_p, sampling.seed, FinishReason.GIVEN),
        reply.finish,
        reply.prompt_tokens,
        reply.completion_tokens,
    )


def _read_call(item: Any, number: int) -> tuple[str, ToolCall]:
    """One call as its agent reads it, and as it goes back to the API (only with arguments that are JSON)."""
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


def make_tool_results(calls: Sequence[ToolCall], observation: Message) -> tuple[Message, ...]:
    """The messages after a turn with calls: one result per call, the last of which has the observation.

    Results cannot hold images, so an observation with images follows them as a user's message.
    """
    *others, last = calls
    together = [Message.tool(_TOGETHER, call) for call in others]
    if observation.images:
        return (*together, Message.tool(_TOGETHER, last), observation)
    return (*together, Message.tool(observation.text, last))


def encode_data_url(image: AnyArray) -> str:
    """An image as PNG in a data URL."""
    return f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode('ascii')}"


def encode_api_message(message: Message, make_url: Callable[[str], str]) -> dict[str, Any]:
    """A message as JSON of the API."""
    value: dict[str, Any] = {"role": message.role}
    if message.images:
        value["content"] = [
            {"type": "image_url", "image_url": {"url": make_url(part.image)}}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text}
            for part in message.parts
        ]
    else:
        value["content"] = message.text
    if message.tool_calls:
        value["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def _encode_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def describe_message(message: Message) -> dict[str, JSON]:
    """A message for the `info` of a step; images by name."""
    texts = [part.text for part in message.parts if not isinstance(part, ImagePart)]
    value: dict[str, JSON] = {"role": message.role, "content": "".join(texts)}
    if message.images:
        value["images"] = list(message.images)
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value
