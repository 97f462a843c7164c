"""What passes between callers of the embedded engine and its worker thread: jobs, new tokens, results.

A job is what was submitted together. Its results come one by one, in any order; its future is done with the
last of them. Tokens of streamed requests leave after every step of the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from stepwell.core.arrays import AnyArray
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import TokenAction
from stepwell.engines.core import FinishedRequest
from stepwell.engines.token_stream import NewTokens, TokenStream


@dataclass(slots=True, eq=False)
class SampleJob:
    """Requests that were submitted together, and the future of their results."""

    requests: list[Request]
    future: Future[list[Sampled]] = field(default_factory=Future)
    results: dict[str, Sampled] = field(default_factory=dict)
    stream: TokenStream | None = None  # only for a job of one streamed request

    def add_result(self, done: FinishedRequest) -> None:
        """Keep one result; the last one completes the job."""
        self.results[done.id] = done.sampled
        if len(self.results) == len(self.requests):
            self.future.set_result([self.results[request.id] for request in self.requests])


def collect_new_tokens(
    streams: dict[str, TokenStream],
    finished: list[FinishedRequest],
    read_new_tokens: Callable[[str, int], tuple[AnyArray, AnyArray]],
) -> Iterator[NewTokens]:
    """Yield the tokens that a step added to streamed requests; streams of finished ones are removed."""
    for done in finished:
        stream = streams.pop(done.id, None)
        if stream is not None:
            assert isinstance(done.sampled.action, TokenAction)
            ids, logprobs = done.sampled.action.action_ids, done.sampled.logprobs
            yield NewTokens(stream, ids[stream.num_sent :].tolist(), logprobs[stream.num_sent :].tolist())
    for request_id, stream in streams.items():
        ids, logprobs = read_new_tokens(request_id, stream.num_sent)
        if len(ids):
            stream.num_sent += len(ids)
            yield NewTokens(stream, ids.tolist(), logprobs.tolist())


def pass_result(
    loop: asyncio.AbstractEventLoop, target: asyncio.Future[list[Sampled]], source: Future[list[Sampled]]
) -> None:
    """Pass a result from the worker thread to the event loop that waits for it."""

    def set_outcome() -> None:
        if target.done():
            return
        error = source.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    if not loop.is_closed():
        loop.call_soon_threadsafe(set_outcome)
