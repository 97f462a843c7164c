"""What OpenAI's three APIs share: sampling options, tools, logprobs, usage.

Log-probabilities are those of the sampled tokens. Alternatives (`top_logprobs`) are refused, not invented: an
engine stores only what it sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from stepwell.core import ToolCall, ToolSchema
from stepwell.services.gateway.chat import ChatCompletion, ChoiceFinish, TokenLogprob
from stepwell.services.gateway.dialects.errors import dump_json
from stepwell.services.gateway.dialects.request_bodies import RequestBody, StopText, refuse_field

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


def write_usage(completion: ChatCompletion) -> dict[str, Any]:
    """Token counts in the format of chat and completions."""
    return {
        "prompt_tokens": completion.num_prompt_tokens,
        "completion_tokens": completion.num_action_tokens,
        "total_tokens": completion.num_prompt_tokens + completion.num_action_tokens,
        "prompt_tokens_details": {"cached_tokens": completion.num_cached_tokens},
    }
