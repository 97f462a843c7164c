"""The embedded engine: samples from a language model inside this process.

    engine = EmbeddedEngine.from_pretrained("path/to/model")
    samples = await engine.generate([Request(TokenState(prompt_ids))])

A worker thread owns the core (`core.py`) and runs it while there is work; everything that
touches the core reaches it as a command between two steps. Callers on an event loop go
through a dynamic batcher; a cancelled task takes its requests out of the batch. `stream`
takes the same way and watches its request being sampled (`token_stream.py`).

With one `generate` call at a time and `max_wait_ms=0` (the default) no clock is read: the
batch is a pure function of weights, requests and seeds, and runs repeat bit for bit.

With an `image_format` the model sees: prompts may name pictures, whose pixels `pictures` has
(`image_features.py`). Without one, prompts with pictures are refused.

The engine runs a copy of the model it is given, because it replaces the model's attention
and rearranges its weights; `copy=False` hands the model over instead.
"""

from __future__ import annotations

import asyncio
import copy as copying
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import EngineError, InputError, WeightsError
from stepwell.core.images import ImageStore
from stepwell.core.protocols import Request, Sampled
from stepwell.engines.batcher import BatchQueue, DynamicBatcher, Slot
from stepwell.engines.core import EngineCore, Finished
from stepwell.engines.numerics import check_dtype
from stepwell.engines.runner_factory import build_runner, open_model
from stepwell.engines.token_stream import News, Outlet, SampledToken, deliver
from stepwell.engines.weights import check_weights, copy_weights, fingerprint_of, read_weights
from stepwell.policies.directory import locate
from stepwell.rendering.vision import ImageFormat, image_format_of

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """Requests that were submitted together, and who wants their results."""

    requests: list[Request]
    future: Future[list[Sampled]] = field(default_factory=Future)
    results: dict[str, Sampled] = field(default_factory=dict)
    outlet: Outlet | None = None  # of a job with one request that somebody watches


class EmbeddedEngine:
    """Samples actions from a transformers causal language model. A `Sampler`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        config: EngineConfig | None = None,
        *,
        version: int = 0,
        copy: bool = True,
        order: Callable[[Slot[Request]], Any] | None = None,
        image_format: ImageFormat | None = None,
        pictures: ImageStore | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.model = (copying.deepcopy(model) if copy else model).eval().requires_grad_(False)
        self.tokenizer = tokenizer
        runner = build_runner(self.model, self.config, image_format, pictures)
        self._core = EngineCore(self.model, tokenizer, runner, self.config, version)
        self._order = order
        self._batcher: tuple[asyncio.AbstractEventLoop, DynamicBatcher[Request, Sampled]] | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: dict[str, _Job] = {}
        self._wanted: dict[int, Outlet] = {}  # by id() of requests whose job is yet to be made
        self._outlets: dict[str, Outlet] = {}  # of requests in flight; the worker's own
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        config: EngineConfig | None = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        version: int = 0,
        pictures: ImageStore | None = None,
    ) -> EmbeddedEngine:
        """An engine for a Hugging Face directory or a built-in name, with its tokenizer if it has one.

        One that sees gets its pixels from `pictures`.
        """
        check_dtype(dtype, device)
        model, tokenizer = open_model(name_or_path, dtype)
        image_format = image_format_of(locate(name_or_path), tokenizer)
        return cls(
            model.to(device),
            tokenizer,
            config,
            version=version,
            copy=False,
            image_format=image_format,
            pictures=pictures,
        )

    @property
    def version(self) -> int:
        """Version of the weights that the next token is sampled with."""
        return self._core.version

    @property
    def image_format(self) -> ImageFormat | None:
        """How prompts show pictures; None for a model of text."""
        return None if self._core.sight is None else self._core.sight.image_format

    @property
    def max_length(self) -> int:
        """Tokens that prompt and action may have together."""
        return self._core.max_length

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order. Cancelling the task cancels the requests."""
        self._check(requests)
        if not requests:
            return []
        return await self._batcher_here().submit(requests)

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Each token as soon as it is sampled, then the sample. Closing the iterator cancels the request."""
        self._check([request])
        outlet = Outlet(asyncio.get_running_loop())
        own = replace(request)  # nobody else holds this object, so its identity can name the stream
        self._wanted[id(own)] = outlet
        try:
            answer = self._batcher_here().enqueue([own])
            async with aclosing(outlet.read(answer)) as items:
                async for item in items:
                    yield item
        finally:
            self._wanted.pop(id(own), None)

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """As `generate`, for callers without an event loop."""
        self._check(requests)
        return self._start([_Job(list(requests))])[0].future.result() if requests else []

    def cancel(self, request_id: str) -> bool:
        """End one request now: its caller gets what it has, with finish reason `cancelled`."""
        return self._call(partial(self._core.cancel, request_id))

    def load_weights(
        self,
        version: int,
        source: Mapping[str, torch.Tensor] | str | Path,
        *,
        fingerprint: str | None = None,
    ) -> None:
        """Replace the weights between two steps, or raise `WeightsError` and keep the old ones.

        `source` is a state dict or a directory of safetensors. With `fingerprint` the new
        weights (in the engine's dtype) must match it. Blocks until the step at hand is done.
        """
        if version < self.version:
            raise WeightsError(
                f"version {version} is older than the engine's {self.version}; it only goes up"
            )
        ready = check_weights(self.model, read_weights(source))
        if fingerprint is not None and (found := fingerprint_of(ready)) != fingerprint:
            raise WeightsError(
                f"version {version} was published as {fingerprint}, but these weights are {found}; "
                f"were they cast to the engine's dtype ({self.model.dtype}) before fingerprinting?"
            )
        self._call(partial(self._core.apply_weights, version, partial(copy_weights, self.model, ready)))

    def forget(self) -> None:
        """Drop every idle cache, so that what comes next depends on nothing that went before."""
        self._call(self._core.drop_cache)

    def fingerprint(self) -> str:
        """Exact fingerprint of the weights in use (see `weights.fingerprint_of`)."""
        return self._call(lambda: fingerprint_of(self.model.state_dict()))

    def close(self) -> None:
        """Stop the worker; requests in flight fail with `EngineError`."""
        with self._lock:
            self._closed = True
            worker = self._worker
            if worker is not None:
                self._commands.put(None)
        if worker is not None:
            worker.join()

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._core.check(request)
        if len({request.id for request in requests}) != len(requests):
            raise InputError("requests: two have the same id; ids must differ")

    def _batcher_here(self) -> DynamicBatcher[Request, Sampled]:
        """The batcher of the running event loop; a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._batcher is None or self._batcher[0] is not loop:
            config = self.config
            waiting: BatchQueue[Request] = BatchQueue(
                config.max_batch_size, config.max_wait_ms, config.max_queue, self._order
            )
            # twice the batch: enough stock for rows that become free, the rest stays orderable
            batcher: DynamicBatcher[Request, Sampled] = DynamicBatcher(
                partial(self._start_slots, loop), waiting, max_inflight=2 * config.max_batch_size
            )
            self._batcher = (loop, batcher)
        return self._batcher[1]

    def _start_slots(self, loop: asyncio.AbstractEventLoop, slots: list[Slot[Request]]) -> None:
        jobs = [_Job(slot.items, outlet=self._wanted.pop(id(slot.items[0]), None)) for slot in slots]
        try:
            self._start(jobs)
        except EngineError as error:  # closed: also whoever waited in the batcher learns of it
            for job in jobs:
                job.future.set_exception(error)
        for slot, job in zip(slots, jobs, strict=True):
            assert slot.future is not None
            job.future.add_done_callback(partial(_hand_over, loop, slot.future))
            slot.future.add_done_callback(partial(self._withdraw, job))

    def _withdraw(self, job: _Job, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            return
        with suppress(EngineError):  # a closed engine has nothing in flight to take out
            for request in job.requests:
                self._post(partial(self._core.cancel, request.id))

    def _start(self, jobs: list[_Job]) -> list[_Job]:
        def add() -> None:
            for job in jobs:
                self._add(job)

        self._post(add)
        return jobs

    def _add(self, job: _Job) -> None:
        """All requests of a job join, or none does and the job fails."""
        if taken := [request.id for request in job.requests if request.id in self._jobs]:
            job.future.set_exception(
                InputError(f"request id {taken[0]!r} is already in flight; ids must differ")
            )
            return
        for request in job.requests:
            self._core.add(request)
            self._jobs[request.id] = job
        if job.outlet is not None:
            self._outlets[job.requests[0].id] = job.outlet

    def _call(self, function: Callable[[], T]) -> T:
        """Run something in the worker, between two steps, and wait for it."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return future.result()

    def _post(self, command: Callable[[], Any]) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="stepwell-engine", daemon=True)
                self._worker.start()
            self._commands.put(command)  # under the lock: nothing may come after `close`

    def _work(self) -> None:
        while True:
            try:
                command = self._commands.get(block=not self._core.busy)
            except queue.Empty:
                command = self._step
            if command is None:
                self._fail(EngineError("the engine was closed with requests in flight"))
                return
            try:
                command()
            except EngineError as error:
                self._fail(error)
            except Exception as error:  # nobody may wait for an answer that never comes
                failure = EngineError(f"sampling failed: {error!r}")
                failure.__cause__ = error
                self._fail(failure)

    def _step(self) -> None:
        finished = self._core.step()
        if self._outlets:
            deliver(self._news(finished))
        for done in finished:
            job = self._jobs.pop(done.id)
            job.results[done.id] = done.sampled
            if len(job.results) == len(job.requests):
                job.future.set_result([job.results[request.id] for request in job.requests])

    def _news(self, finished: list[Finished]) -> Iterator[News]:
        """What this step added to the requests that somebody watches."""
        for done in finished:
            outlet = self._outlets.pop(done.id, None)
            if outlet is not None:
                ids, logprobs = done.sampled.action.action_ids, done.sampled.logprobs
                yield News(outlet, ids[outlet.num_sent :].tolist(), logprobs[outlet.num_sent :].tolist())
        for request_id, outlet in self._outlets.items():
            ids, logprobs = self._core.sampled_since(request_id, outlet.num_sent)
            if len(ids):
                outlet.num_sent += len(ids)
                yield News(outlet, ids.tolist(), logprobs.tolist())

    def _fail(self, error: EngineError) -> None:
        """Empty the batch; then whoever waits learns why."""
        self._core.abort()
        jobs = set(self._jobs.values())
        self._jobs.clear()
        self._outlets.clear()
        for job in jobs:
            job.future.set_exception(error)


def _hand_over(
    loop: asyncio.AbstractEventLoop, target: asyncio.Future[list[Sampled]], source: Future[list[Sampled]]
) -> None:
    """Carry a result from the worker to the event loop that waits for it."""

    def deliver() -> None:
        if target.done():
            return
        error = source.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)
