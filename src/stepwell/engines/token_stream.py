"""Tokens as they are sampled: what a stream yields, and how tokens reach the event loop.

    async for item in engine.stream(request):       # SampledToken, SampledToken, …, Sampled

A stream yields every sampled token in order and then one `Sampled`, whose ids and logprobs
are exactly those streamed. It raises what `generate` would raise, after the tokens that came
before. Closing the iterator (or cancelling the task that reads it) cancels the request.

`Outlet` is the way from an engine's worker thread to one reader. The worker hands over the
tokens of a whole engine step at once (`deliver`: one wake-up per event loop and step, however
many streams there are); the reader sleeps until something came. Nobody polls.

A reader that is slower than the engine finds its tokens waiting: at most `max_tokens` of them,
and the batch never waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from stepwell.core.protocols import Request, Sampled


class SampledToken(NamedTuple):
    """One token, as soon as it is sampled; `logprob` as in `Sampled.logprobs`."""

    id: int
    logprob: float


@runtime_checkable
class Streamer(Protocol):
    """A sampler that can be watched while it samples."""

    def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Each token, then the whole sample."""
        ...


class Outlet:
    """Where one request's tokens come out. Made by the reader, filled through `deliver`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.num_sent = 0  # the worker's count; the reader does not look at it
        self._tokens: deque[SampledToken] = deque()
        self._news = asyncio.Event()

    async def read(self, answer: asyncio.Future[list[Sampled]]) -> AsyncIterator[SampledToken | Sampled]:
        """Tokens until `answer` is there, then the one sample it holds; leaving early cancels `answer`."""
        answer.add_done_callback(lambda _: self._news.set())
        try:
            while True:
                while self._tokens:
                    yield self._tokens.popleft()
                if answer.done():
                    break
                self._news.clear()
                await self._news.wait()
            (sampled,) = answer.result()
            yield sampled
        finally:
            answer.cancel()

    def put(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Let the reader have tokens. Only on the reader's own event loop."""
        self._tokens.extend(map(SampledToken, ids, logprobs))
        self._news.set()


class News(NamedTuple):
    """New tokens of one stream."""

    outlet: Outlet
    ids: list[int]
    logprobs: list[float]


def deliver(news: Iterable[News]) -> None:
    """Carry tokens of one engine step from the worker to their readers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[News]] = {}
    for item in news:
        by_loop.setdefault(item.outlet.loop, []).append(item)
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, items)
        except RuntimeError:
            if not loop.is_closed():  # a closed loop has no readers left; anything else is ours to know
                raise


def _put_all(news: list[News]) -> None:
    for outlet, ids, logprobs in news:
        outlet.put(ids, logprobs)
