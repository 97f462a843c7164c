"""A real gateway around a sampler that repeats the last message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.config.gateway import GatewayConfig
from stepwell.core import (
    EngineError,
    FinishReason,
    Request,
    Sampled,
    Sampling,
    TokenAction,
    TokenState,
    VersionSpan,
)
from stepwell.engines.token_stream import SampledToken
from stepwell.pool import open_pool
from stepwell.rendering import Renderer
from stepwell.rendering.tiny import TINY_CONTEXT, build_tokenizer
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

_LAST_TURN = re.compile(r".*<\|im_start\|>\w+\n(.*)<\|im_end\|>\n<\|im_start\|>assistant\n$", re.DOTALL)


class EchoSampler:
    """Samples the text of the last message, or the whole prompt if there are no messages.

    On "be gone" it fails, on "break off" it fails after its first token, on "wait" it waits for the client to
    disconnect.
    """

    max_length = TINY_CONTEXT

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.num_waiting = self.num_cancelled = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return [[item async for item in self.stream(request)][-1] for request in requests]  # type: ignore[misc]

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        assert isinstance(request.state, TokenState)
        text = self._tokenizer.decode(request.state.prompt_ids.tolist())
        turn = _LAST_TURN.match(text)
        words = turn.group(1) if turn else text
        if words == "be gone":
            raise EngineError("the echo engine is gone")
        if words == "wait":
            await self._wait()
        sampled = self._sampled(words, request)
        assert isinstance(sampled.action, TokenAction)
        for id_, logprob in zip(sampled.action.action_ids.tolist(), sampled.logprobs.tolist(), strict=True):
            yield SampledToken(id_, logprob)
            if words == "break off":
                raise EngineError("the echo engine is gone")
        yield sampled

    async def _wait(self) -> None:
        self.num_waiting += 1
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    def _sampled(self, words: str, request: Request) -> Sampled:
        params = request.params
        ids = [*self._tokenizer.encode(words), self._tokenizer.eos_token_id]
        for count in range(1, len(ids)):
            if any(stop in self._tokenizer.decode(ids[:count]) for stop in params.stop):
                ids = ids[:count]
        reason = FinishReason.LENGTH if len(ids) > params.max_tokens else FinishReason.STOP
        ids = ids[: params.max_tokens]
        return Sampled(
            TokenAction(np.asarray(ids), self._tokenizer.decode(ids)),
            -0.5 * np.arange(1, len(ids) + 1, dtype=np.float32),
            Sampling(params.temperature, params.top_p, params.seed, reason),
            VersionSpan.at(0),
        )


@dataclass
class Served:
    """An echo gateway served over real HTTP."""

    url: str
    echo: EchoSampler


@contextmanager
def serve_echo_gateway(folder: Path) -> Iterator[Served]:
    tokenizer = build_tokenizer()
    echo, pool = EchoSampler(tokenizer), open_pool(folder / "pool.db")
    renderer = Renderer(tokenizer, context_length=TINY_CONTEXT)
    url, stop = serve_in_thread(create_app(Gateway(echo, renderer, pool, GatewayConfig(model_name="echo"))))
    try:
        yield Served(url, echo)
    finally:
        stop()
        pool.close()
