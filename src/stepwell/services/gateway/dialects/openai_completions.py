"""OpenAI's completions: `POST /v1/completions`, text or token ids in, text out, no chat template.

One prompt per call. As at OpenAI, an answer has at most 16 tokens unless `max_tokens` says
otherwise. `logprobs: 0` gives the sampled tokens' own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from stepwell.core.ids import new_id
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.bodies import (
    MAX_CHOICES,
    Body,
    MaxTokens,
    Seed,
    Temperature,
    TopP,
    refuse,
    refuse_given,
    temperature_of,
)
from stepwell.services.gateway.dialects.refusals import Vendor, error_body
from stepwell.services.gateway.dialects.route import event
from stepwell.services.gateway.exchange import Answer, Ask, Choice, Delta, Finish, Refused, Token

DEFAULT_MAX_TOKENS = 16

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Prompt = str | list[TokenId] | list[str] | list[list[TokenId]]


class CompletionRequest(Body):
    """The body of a completion."""

    model: str
    prompt: Prompt
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: shared.Stop | None = None
    seed: Seed | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stream: bool | None = None
    stream_options: shared.StreamOptions | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None


def ask_of(body: CompletionRequest) -> Ask:
    """What a body asks for."""
    num_choices = body.n or 1
    refuse_given(
        {
            "best_of": (body.best_of not in (None, num_choices), "choose among n answers yourself"),
            "echo": (body.echo, "the prompt is not sent back; put it before the answer yourself"),
            "suffix": (body.suffix, "the policy writes onwards only"),
            "frequency_penalty": (body.frequency_penalty, shared.NO_PENALTY),
            "presence_penalty": (body.presence_penalty, shared.NO_PENALTY),
            "logit_bias": (body.logit_bias, shared.NO_PENALTY),
            "logprobs": (body.logprobs, shared.ONLY_SAMPLED),
        }
    )
    return Ask(
        model=body.model,
        prompt=_one(body.prompt),
        num_choices=num_choices,
        max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
        temperature=temperature_of(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        stop=shared.stops(body.stop),
        seed=body.seed,
        num_top_logprobs=body.logprobs,
        metadata=shared.provenance(body.metadata, body.user),
        id=new_id("cmpl"),
    )


def reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """An answer as one JSON object."""
    with_logprobs = ask.num_top_logprobs is not None
    return {
        "id": answer.id,
        "object": "text_completion",
        "created": answer.created,
        "model": ask.model,
        "choices": [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": _logprobs(choice.tokens, 0) if with_logprobs else None,
                "finish_reason": _finish(choice),
            }
            for choice in answer.choices
        ],
        "usage": shared.usage(answer),
    }


class CompletionWriter:
    """An answer as a stream of chunks."""

    def __init__(self, ask: Ask, *, with_usage: bool) -> None:
        self._ask, self._with_usage = ask, with_usage
        self._created = int(time.time())
        self._offsets = [0] * ask.num_choices  # where each choice's next token begins

    def begin(self) -> Iterator[bytes]:
        yield from ()

    def delta(self, delta: Delta) -> Iterator[bytes]:
        logprobs = _logprobs(delta.tokens, self._offsets[delta.index]) if delta.tokens else None
        self._offsets[delta.index] += sum(len(token.text) for token in delta.tokens)
        yield self._chunk(delta.index, delta.text, logprobs)

    def end(self, answer: Answer) -> Iterator[bytes]:
        for choice in answer.choices:
            yield self._chunk(choice.index, "", finish=_finish(choice))
        if self._with_usage:
            yield event({**self._head(), "choices": [], "usage": shared.usage(answer)})
        yield b"data: [DONE]\n\n"

    def failed(self, refused: Refused) -> bytes:
        return event(error_body(Vendor.OPENAI, refused))

    def _head(self) -> dict[str, Any]:
        head = {"id": self._ask.id, "object": "text_completion", "created": self._created}
        return {**head, "model": self._ask.model}

    def _chunk(self, index: int, text: str, logprobs: Any = None, finish: Any = None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head(), "choices": [choice], **({"usage": None} if self._with_usage else {})})


def _one(prompt: Prompt) -> str | tuple[int, ...]:
    """The prompt of a call, which may come as a list of one."""
    if not prompt:
        refuse("prompt", "is empty; a policy needs at least one token to go on from")
    if isinstance(prompt, str):
        return prompt
    if all(isinstance(item, int) for item in prompt):
        return tuple(prompt)  # type: ignore[arg-type]  # a list of ids, by the line above
    if len(prompt) > 1:
        refuse("prompt", f"holds {len(prompt)} prompts; send one per call (calls may run side by side)")
    (only,) = prompt
    assert not isinstance(only, int)
    return _one(only)


def _finish(choice: Choice) -> str:
    return "stop" if choice.finish is Finish.TOOL_CALLS else shared.FINISH[choice.finish]


def _logprobs(tokens: Sequence[Token], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [shared.finite(token.logprob) for token in tokens],
        "top_logprobs": None,
        "text_offset": offsets,
    }
