"""Streams of sampled tokens, and the way of the tokens from the worker thread to the event loop.

    async for item in engine.stream(request):       # SampledToken, SampledToken, …, Sampled

A stream yields every sampled token in order and then one `Sampled`, whose ids and logprobs
are exactly the streamed ones. It raises the same errors as `generate`, after the tokens
sampled so far. Closing the iterator (or cancelling the task that reads it) cancels the request.

`TokenStream` connects an engine's worker thread with one reader. The worker delivers the
tokens of a whole engine step at once (`deliver_tokens`: one wake-up per event loop and step,
however many streams there are), and the reader sleeps until then. Nothing polls.

For a reader that is slower than the engine at most `max_tokens` tokens wait. The batch never
waits for a reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from stepwell.core.protocols import Request, Sampled


class SampledToken(NamedTuple):
    """One sampled token; `logprob` as in `Sampled.logprobs`."""

    id: int
    logprob: float


@runtime_checkable
class Streamer(Protocol):
    """A sampler that can stream tokens while it samples."""

    def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield each token, then the whole sample."""


class TokenStream:
    """The tokens of one request. Made by the reader, filled by `deliver_tokens`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.num_sent = 0  # counted by the worker; the reader does not use it
        self._tokens: deque[SampledToken] = deque()
        self._wakeup = asyncio.Event()

    async def read_items(
        self, answer: asyncio.Future[list[Sampled]]
    ) -> AsyncGenerator[SampledToken | Sampled, None]:
        """Yield tokens until `answer` is done, then its one sample; leaving early cancels `answer`."""
        answer.add_done_callback(lambda _: self._wakeup.set())
        try:
            while True:
                while self._tokens:
                    yield self._tokens.popleft()
                if answer.done():
                    break
                self._wakeup.clear()
                await self._wakeup.wait()
            (sampled,) = answer.result()
            yield sampled
        finally:
            answer.cancel()

    def put_tokens(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Give tokens to the reader. Call it on the reader's own event loop only."""
        self._tokens.extend(map(SampledToken, ids, logprobs))
        self._wakeup.set()


class NewTokens(NamedTuple):
    """New tokens of one stream."""

    stream: TokenStream
    ids: list[int]
    logprobs: list[float]


def deliver_tokens(news: Iterable[NewTokens]) -> None:
    """Pass tokens of one engine step from the worker to their readers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[NewTokens]] = {}
    for item in news:
        by_loop.setdefault(item.stream.loop, []).append(item)
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, items)
        except RuntimeError:
            if not loop.is_closed():  # a closed loop has no readers left; any other error is real
                raise


def _put_all(news: list[NewTokens]) -> None:
    for stream, ids, logprobs in news:
        stream.put_tokens(ids, logprobs)
