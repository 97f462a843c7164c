"""What OpenAI's three APIs share: sampling options, tools, logprobs, usage.

Log-probabilities are those of the sampled tokens. Alternatives to them (`top_logprobs`) are
refused, not invented: an engine keeps what it sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from stepwell.core import ToolCall, ToolSchema
from stepwell.services.gateway.dialects.bodies import Body, StopText, refuse
from stepwell.services.gateway.dialects.refusals import dumps
from stepwell.services.gateway.exchange import Answer, Finish, Token

ONLY_SAMPLED = "only the sampled tokens' own log-probabilities are known; leave it out or set it to 0"
NO_PENALTY = "the engine samples from the policy as it is; leave it out or set it to 0"
MAX_STOPS = 16

FINISH = {Finish.END: "stop", Finish.STOP_STRING: "stop", Finish.LENGTH: "length"}


class StreamOptions(Body):
    """`include_usage` adds a last chunk with the counts of tokens."""

    include_usage: bool | None = None


class ResponseFormat(Body):
    """The form of the answer; only `text` is served."""

    type: str


class NamedChoice(Body):
    """A tool choice that is an object: one named tool, or a set of allowed ones."""

    type: str


ToolChoice = Literal["none", "auto", "required"] | NamedChoice
Stop = StopText | list[StopText]


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > MAX_STOPS:
        refuse("stop", f"holds {len(found)} strings; at most {MAX_STOPS} are watched for")
    return found


def provenance(metadata: dict[str, str] | None, user: str | None) -> dict[str, str]:
    """What a client says of itself."""
    return {**(metadata or {}), **({"user": user} if user else {})}


def offered(
    tools: Sequence[ToolSchema], choice: ToolChoice | None, parallel: bool | None
) -> tuple[ToolSchema, ...]:
    """The tools that the policy is shown: none with `none`. What it cannot be made to do is refused."""
    if choice == "none":
        return ()
    if choice not in (None, "auto"):
        wanted = choice if isinstance(choice, str) else choice.type
        refuse("tool_choice", f"{wanted!r} cannot be forced upon a policy; use 'auto' or 'none'")
    if parallel is False and tools:
        refuse("parallel_tool_calls", "how many tools are called is the policy's choice; leave it out")
    return tuple(tools)


def refuse_format(form: ResponseFormat | None, param: str) -> None:
    """Refuse answers in any form but text."""
    if form is not None and form.type != "text":
        refuse(param, f"{form.type!r} cannot be guaranteed; use 'text' and parse the answer")


def written_arguments(call: ToolCall) -> str:
    """Arguments as JSON text, as OpenAI's clients expect them."""
    return dumps(call.arguments)


def written_logprob(token: Token) -> dict[str, Any]:
    """One sampled token as chat and responses show it."""
    return {
        "token": token.text,
        "logprob": finite(token.logprob),
        "bytes": list(token.raw),
        "top_logprobs": [],
    }


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold; these APIs write -9999 for what is impossible."""
    return logprob if math.isfinite(logprob) else -9999.0


def usage(answer: Answer) -> dict[str, Any]:
    """Counts of tokens in the form of chat and completions."""
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_action_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_action_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }
