"""What OpenAI's three APIs share: sampling options, tools, logprobs, usage.

Log-probabilities are those of the sampled tokens. Alternatives (`top_logprobs`) are refused, not invented: an
engine stores only what it sampled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from stepwell.core import ToolCall, ToolSchema
from stepwell.services.errors import ServiceError
from stepwell.services.gateway.chat import (
    ChatCompletion,
    ChatRequest,
    ChoiceFinish,
    CompletionChoice,
    TokenLogprob,
)
from stepwell.services.gateway.dialects.errors import Vendor, dump_json, write_error_body
from stepwell.services.gateway.dialects.request_bodies import RequestBody, StopText, refuse_field
from stepwell.services.gateway.dialects.route import write_event

ONLY_SAMPLED = "only log-probabilities of the sampled tokens are available; leave it out or set it to 0"
NO_PENALTY = "the engine does not change the policy's probabilities; leave it out or set it to 0"
MAX_STOPS = 16

FINISH = {ChoiceFinish.END: "stop", ChoiceFinish.STOP_STRING: "stop", ChoiceFinish.LENGTH: "length"}


class StreamOptions(RequestBody):
    """`include_usage` adds a last chunk with the token counts."""

    include_usage: bool | None = None


class ResponseFormat(RequestBody):
    """The format of the reply. Only `text` is supported."""

    type: str


class NamedToolChoice(RequestBody):
    """A tool choice that is an object: one named tool, or a set of allowed ones."""

    type: str


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
Stop = StopText | list[StopText]


def read_stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > MAX_STOPS:
        refuse_field("stop", f"holds {len(found)} strings; at most {MAX_STOPS} are supported")
    return found


def read_metadata(metadata: dict[str, str] | None, user: str | None) -> dict[str, str]:
    """Metadata of the client, stored with the step."""
    return {**(metadata or {}), **({"user": user} if user else {})}


def select_tools(
    tools: Sequence[ToolSchema], choice: ToolChoice | None, parallel: bool | None
) -> tuple[ToolSchema, ...]:
    """The tools that the policy sees: none with `none`. A choice that cannot be enforced is refused."""
    if choice == "none":
        return ()
    if choice not in (None, "auto"):
        wanted = choice if isinstance(choice, str) else choice.type
        refuse_field("tool_choice", f"{wanted!r} cannot be enforced; use 'auto' or 'none'")
    if parallel is False and tools:
        refuse_field("parallel_tool_calls", "the policy decides how many tools it calls; leave it out")
    return tuple(tools)


def refuse_format(response_format: ResponseFormat | None, param: str) -> None:
    """Refuse every reply format but text."""
    if response_format is not None and response_format.type != "text":
        refuse_field(param, f"{response_format.type!r} is not supported; use 'text' and parse the reply")


def write_arguments(call: ToolCall) -> str:
    """Arguments as JSON text, as OpenAI's clients expect them."""
    return dump_json(call.arguments)


def write_logprob(token: TokenLogprob) -> dict[str, Any]:
    """One sampled token as chat and responses show it."""
    return {
        "token": token.text,
        "logprob": make_finite(token.logprob),
        "bytes": list(token.raw),
        "top_logprobs": [],
    }


def make_finite(logprob: float) -> float:
    """A log-probability that JSON can hold. These APIs write -9999 for impossible tokens."""
    return logprob if math.isfinite(logprob) else -9999.0


def name_finish(choice: CompletionChoice, tool_finish: str) -> str:
    """Why a choice ended; `tool_finish` if it called tools."""
    return tool_finish if choice.finish is ChoiceFinish.TOOL_CALLS else FINISH[choice.finish]


def write_usage(completion: ChatCompletion) -> dict[str, Any]:
    """Token counts in the format of chat and completions."""
    return {
        "prompt_tokens": completion.num_prompt_tokens,
        "completion_tokens": completion.num_action_tokens,
        "total_tokens": completion.num_prompt_tokens + completion.num_action_tokens,
        "prompt_tokens_details": {"cached_tokens": completion.num_cached_tokens},
    }


class ChunkWriter:
    """A completion as a stream of chunks, as chat and completions have them."""

    object_name: ClassVar[str]
    content_field: ClassVar[str]
    no_content: ClassVar[Any]
    tool_finish: ClassVar[str]

    def __init__(self, chat: ChatRequest, *, with_usage: bool) -> None:
        self._chat, self._with_usage = chat, with_usage
        self._created = int(time.time())

    def write_end(self, completion: ChatCompletion) -> Iterator[bytes]:
        for choice in completion.choices:
            finish = name_finish(choice, self.tool_finish)
            yield self._write_chunk(choice.index, self.no_content, finish=finish)
        if self._with_usage:
            yield write_event({**self._make_head(), "choices": [], "usage": write_usage(completion)})
        yield b"data: [DONE]\n\n"

    def write_error(self, error: ServiceError) -> bytes:
        return write_event(write_error_body(Vendor.OPENAI, error))

    def _make_head(self) -> dict[str, Any]:
        head = {"id": self._chat.id, "object": self.object_name, "created": self._created}
        return {**head, "model": self._chat.model}

    def _write_chunk(self, index: int, content: Any, logprobs: Any = None, finish: Any = None) -> bytes:
        choice = {"index": index, self.content_field: content, "logprobs": logprobs, "finish_reason": finish}
        return write_event(
            {**self._make_head(), "choices": [choice], **({"usage": None} if self._with_usage else {})}
        )
