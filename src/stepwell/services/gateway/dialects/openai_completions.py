"""OpenAI's completions: `POST /v1/completions`. Text or token ids in, text out, no chat template.

One prompt per call. As in OpenAI's API, a reply has at most 16 tokens unless `max_tokens` is set.
`logprobs: 0` returns those of the sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from stepwell.core.ids import make_id
from stepwell.services.gateway.chat import ChatCompletion, ChatRequest, CompletionDelta, TokenLogprob
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.request_bodies import (
    MAX_CHOICES,
    MaxTokens,
    RequestBody,
    Seed,
    Temperature,
    TopP,
    refuse_field,
    refuse_unsupported,
    resolve_temperature,
)

DEFAULT_MAX_TOKENS = 16

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Prompt = str | list[TokenId] | list[str] | list[list[TokenId]]


class CompletionRequest(RequestBody):
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


def parse_request(body: CompletionRequest) -> ChatRequest:
    """The request in a body."""
    num_choices = body.n or 1
    refuse_unsupported(
        {
            "best_of": (
                body.best_of not in (None, num_choices),
                "use n and choose among the replies yourself",
            ),
            "echo": (body.echo, "the prompt is not returned; prepend it yourself"),
            "suffix": (body.suffix, "the policy only continues a text"),
            "frequency_penalty": (body.frequency_penalty, shared.NO_PENALTY),
            "presence_penalty": (body.presence_penalty, shared.NO_PENALTY),
            "logit_bias": (body.logit_bias, shared.NO_PENALTY),
            "logprobs": (body.logprobs, shared.ONLY_SAMPLED),
        }
    )
    return ChatRequest(
        model=body.model,
        prompt=_require_one_prompt(body.prompt),
        num_choices=num_choices,
        max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
        temperature=resolve_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        stop=shared.read_stop_strings(body.stop),
        seed=body.seed,
        num_top_logprobs=body.logprobs,
        metadata=shared.read_metadata(body.metadata, body.user),
        id=make_id("cmpl"),
    )


def write_reply(chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    """A completion as one JSON object."""
    with_logprobs = chat.num_top_logprobs is not None
    return {
        "id": completion.id,
        "object": "text_completion",
        "created": completion.created,
        "model": chat.model,
        "choices": [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": _write_logprobs(choice.tokens, 0) if with_logprobs else None,
                "finish_reason": shared.name_finish(choice, CompletionWriter.tool_finish),
            }
            for choice in completion.choices
        ],
        "usage": shared.write_usage(completion),
    }


class CompletionWriter(shared.ChunkWriter):
    """A completion as a stream of chunks."""

    object_name, content_field, no_content, tool_finish = "text_completion", "text", "", "stop"

    def __init__(self, chat: ChatRequest, *, with_usage: bool) -> None:
        super().__init__(chat, with_usage=with_usage)
        self._offsets = [0] * chat.num_choices  # where each choice's next token starts

    def write_start(self) -> Iterator[bytes]:
        yield from ()

    def write_delta(self, delta: CompletionDelta) -> Iterator[bytes]:
        logprobs = _write_logprobs(delta.tokens, self._offsets[delta.index]) if delta.tokens else None
        self._offsets[delta.index] += sum(len(token.text) for token in delta.tokens)
        yield self._write_chunk(delta.index, delta.text, logprobs)


def _require_one_prompt(prompt: Prompt) -> str | tuple[int, ...]:
    """The prompt of a call, which may come as a list of one."""
    if not prompt:
        refuse_field("prompt", "is empty; send at least one token")
    if isinstance(prompt, str):
        return prompt
    if all(isinstance(item, int) for item in prompt):
        return tuple(prompt)  # type: ignore[arg-type]  # the line above checked that all are ids
    if len(prompt) > 1:
        refuse_field("prompt", f"holds {len(prompt)} prompts; send one per call (calls may run in parallel)")
    (only,) = prompt
    assert not isinstance(only, int)
    return _require_one_prompt(only)


def _write_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [shared.make_finite(token.logprob) for token in tokens],
        "top_logprobs": None,
        "text_offset": offsets,
    }
