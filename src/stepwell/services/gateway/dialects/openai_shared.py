"""What OpenAI's three APIs share: sampling options, tools, logprobs, usage.

Log-probabilities are those of the sampled tokens. Alternatives to them (`top_logprobs`) are
refused, not invented: an engine keeps what it sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from stepwell.core import ToolCall, ToolSchema
from stepwell.services.gateway.chat import ChatCompletion, ChoiceFinish, TokenLogprob
from stepwell.services.gateway.dialects.errors import dump_json
from stepwell.services.gateway.dialects.request_bodies import RequestBody, StopText, refuse_field

ONLY_SAMPLED = "only the sampled tokens' own log-probabilities are known; leave it out or set it to 0"
NO_PENALTY = "the engine samples from the policy as it is; leave it out or set it to 0"
MAX_STOPS = 16

FINISH = {ChoiceFinish.END: "stop", ChoiceFinish.STOP_STRING: "stop", ChoiceFinish.LENGTH: "length"}


class StreamOptions(RequestBody):
    """`include_usage` adds a last chunk with the counts of tokens."""

    include_usage: bool | None = None


class ResponseFormat(RequestBody):
    """The form of the answer; only `text` is served."""

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
        refuse_field("stop", f"holds {len(found)} strings; at most {MAX_STOPS} are watched for")
    return found


def read_metadata(metadata: dict[str, str] | None, user: str | None) -> dict[str, str]:
    """What a client says of itself."""
    return {**(metadata or {}), **({"user": user} if user else {})}


def select_tools(
    tools: Sequence[ToolSchema], choice: ToolChoice | None, parallel: bool | None
) -> tuple[ToolSchema, ...]:
    """The tools that the policy is shown: none with `none`. What it cannot be made to do is refused."""
    if choice == "none":
        return ()
    if choice not in (None, "auto"):
        wanted = choice if isinstance(choice, str) else choice.type
        refuse_field("tool_choice", f"{wanted!r} cannot be forced upon a policy; use 'auto' or 'none'")
    if parallel is False and tools:
        refuse_field("parallel_tool_calls", "how many tools are called is the policy's choice; leave it out")
    return tuple(tools)


def refuse_format(form: ResponseFormat | None, param: str) -> None:
    """Refuse answers in any form but text."""
    if form is not None and form.type != "text":
        refuse_field(param, f"{form.type!r} cannot be guaranteed; use 'text' and parse the answer")


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
    """A log-probability that JSON can hold; these APIs write -9999 for what is impossible."""
    return logprob if math.isfinite(logprob) else -9999.0


def write_usage(completion: ChatCompletion) -> dict[str, Any]:
    """Counts of tokens in the form of chat and completions."""
    return {
        "prompt_tokens": completion.num_prompt_tokens,
        "completion_tokens": completion.num_action_tokens,
        "total_tokens": completion.num_prompt_tokens + completion.num_action_tokens,
        "prompt_tokens_details": {"cached_tokens": completion.num_cached_tokens},
    }
