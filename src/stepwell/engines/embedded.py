"""The embedded engine: samples from a language model inside this process.

    engine = EmbeddedEngine.from_pretrained("path/to/model")
    samples = await engine.generate([Request(TokenState(prompt_ids))])

A worker thread owns the core (`core.py`) and runs it while there is work. Everything else
reaches the core as a command that runs between two steps. The thread ends when the engine is
closed, or when nobody holds the engine any more. Callers on an event loop go
through a dynamic batcher; a cancelled task takes its requests out of the batch. `stream`
works the same way and also delivers each token as it is sampled (`token_stream.py`).

With one `generate` call at a time and `max_wait_ms=0` (the default) no clock is read: the
batch is a pure function of weights, requests and seeds, and runs repeat bit for bit.

With an `image_format` prompts may contain images, whose pixels come from `images`
(`image_features.py`). Without one, prompts with images are refused.

The engine replaces the model's attention and rearranges its weights. It therefore works on
a copy of the model; `copy=False` hands over the model itself.
"""

from __future__ import annotations

import asyncio
import copy as copying
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import EngineError, InputError
from stepwell.core.images import ImageStore
from stepwell.core.protocols import Request, Sampled
from stepwell.engines.batcher import BatchQueue, DynamicBatcher, RequestBundle, shorten_switch_interval
from stepwell.engines.core import EngineCore, EngineCounts
from stepwell.engines.jobs import SampleJob, collect_new_tokens, pass_result
from stepwell.engines.numerics import check_dtype
from stepwell.engines.rotation_check import check_rotation, compare_frequencies
from stepwell.engines.runner_factory import build_runner, open_model
from stepwell.engines.token_stream import SampledToken, TokenStream, deliver_tokens
from stepwell.engines.weights import check_weights, copy_weights, fingerprint_of, read_version
from stepwell.policies.directory import locate_model
from stepwell.rendering.vision import ImageFormat, load_image_format

T = TypeVar("T")


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
        order: Callable[[RequestBundle[Request]], Any] | None = None,
        image_format: ImageFormat | None = None,
        image_store: ImageStore | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.model = (copying.deepcopy(model) if copy else model).eval().requires_grad_(False)
        self.tokenizer = tokenizer
        runner = build_runner(self.model, self.config, image_format, image_store)
        self._core = EngineCore(self.model, tokenizer, runner, self.config, version)
        self._order = order
        self._batcher: tuple[asyncio.AbstractEventLoop, DynamicBatcher[Request, Sampled]] | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: dict[str, SampleJob] = {}
        self._requested_streams: dict[int, TokenStream] = {}  # by id() of requests without a job yet
        self._streams: dict[str, TokenStream] = {}  # of requests in flight; only the worker uses it
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.paused_s = 0.0  # in which weights were loaded or read instead of sampling

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        config: EngineConfig | None = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        version: int = 0,
        image_store: ImageStore | None = None,
    ) -> EmbeddedEngine:
        """Build an engine for a Hugging Face directory or a built-in name, with its tokenizer if it has one.

        A vision-language model gets its pixels from `image_store`.
        """
        check_dtype(dtype, device)
        model, tokenizer = open_model(name_or_path, dtype)
        image_format = load_image_format(locate_model(name_or_path), tokenizer)
        return cls(
            model.to(device),
            tokenizer,
            config,
            version=version,
            copy=False,
            image_format=image_format,
            image_store=image_store,
        )

    @property
    def version(self) -> int:
        """Version of the weights that sample the next token."""
        return self._core.version

    @property
    def image_format(self) -> ImageFormat | None:
        """How prompts represent images; None for a text model."""
        return None if self._core.image_features is None else self._core.image_features.image_format

    @property
    def counts(self) -> EngineCounts:
        """Steps and tokens computed so far."""
        return self._core.counts

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of prompt and action together."""
        return self._core.max_length

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """Sample one action per request, in order. Cancelling the task cancels the requests."""
        self._check_requests(requests)
        return await self._get_batcher().submit(requests) if requests else []

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield each token as it is sampled, then the sample. Closing the iterator cancels the request."""
        self._check_requests([request])
        stream = TokenStream(asyncio.get_running_loop())
        own = replace(request)  # nobody else holds this object, so its identity can name the stream
        self._requested_streams[id(own)] = stream
        try:
            answer = self._get_batcher().enqueue([own])
            async with aclosing(stream.read_items(answer)) as items:
                async for item in items:
                    yield item
        finally:
            self._requested_streams.pop(id(own), None)

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """Do what `generate` does, for callers without an event loop."""
        self._check_requests(requests)
        return self._start_jobs([SampleJob(list(requests))])[0].future.result() if requests else []

    def cancel(self, request_id: str) -> bool:
        """End one request now. Its caller gets the tokens so far, with finish reason `cancelled`."""
        return self._run_in_worker(partial(self._core.cancel, request_id))

    def load_weights(
        self, version: int, source: Mapping[str, torch.Tensor] | str | Path, *, fingerprint: str | None = None
    ) -> None:
        """Replace the weights between two steps, or raise `WeightsError` and keep the old ones.

        `source` is a state dict or a directory of safetensors. With `fingerprint` the new
        weights (in the engine's dtype) must match it. Blocks until the current step is done.
        """
        ready = read_version(self.model, version, self.version, source, fingerprint)
        self._swap_weights(version, ready)

    def update_weights(self, version: int, changed: Mapping[str, torch.Tensor]) -> None:
        """Replace these weights between two steps and keep the others, or raise and keep all."""
        self._swap_weights(version, check_weights(self.model, changed, is_partial=True))

    def live_weights(self) -> dict[str, torch.Tensor]:
        """The weights in use, to be read while no others are loaded."""
        return self.model.state_dict()  # type: ignore[no-any-return]

    def _swap_weights(self, version: int, ready: Mapping[str, torch.Tensor]) -> None:
        self.check_rotation(self.model)
        self._pause(partial(self._core.apply_weights, version, partial(copy_weights, self.model, ready)))

    def _pause(self, function: Callable[[], T]) -> T:
        """Run a function between two steps, and count how long it kept the engine from sampling."""

        def run() -> T:
            began = time.perf_counter()
            try:
                return function()
            finally:
                self.paused_s += time.perf_counter() - began

        return self._run_in_worker(run)

    def forget(self) -> None:
        """Drop every idle cache, so that later samples do not depend on earlier requests."""
        self._run_in_worker(self._core.drop_cache)

    def fingerprint(self) -> str:
        """Compute the exact fingerprint of the weights in use (see `weights.fingerprint_of`)."""
        return self._pause(lambda: fingerprint_of(self.model.state_dict()))

    def check_rotation(self, model: Any) -> None:
        """Refuse if this engine rotates queries and keys otherwise than the trainer's `model` anywhere."""
        runner = self._core.runner
        self._pause(lambda: check_rotation(runner.forward, self.model, model, runner.store.length))

    def check_frequencies(self, frequencies: Mapping[str, torch.Tensor]) -> None:
        """Refuse if this engine rotates otherwise than a trainer elsewhere, whose frequencies these are."""
        compare_frequencies(self.model, frequencies)
        self.check_rotation(self.model)

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._core.check_request(request)
        if len({request.id for request in requests}) != len(requests):
            raise InputError("requests: two requests have the same id; give each its own id")

    def _get_batcher(self) -> DynamicBatcher[Request, Sampled]:
        """Return the batcher of the running event loop; a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._batcher is None or self._batcher[0] is not loop:
            shorten_switch_interval()  # the loop's own work is in another thread than the engine's
            config = self.config
            waiting: BatchQueue[Request] = BatchQueue(
                config.max_batch_size, config.max_wait_ms, config.max_queue, self._order
            )
            # twice the batch size: enough for rows that become free; the rest can still be reordered
            batcher: DynamicBatcher[Request, Sampled] = DynamicBatcher(
                partial(self._start_bundles, loop), waiting, max_inflight=2 * config.max_batch_size
            )
            self._batcher = (loop, batcher)
        return self._batcher[1]

    def _start_bundles(self, loop: asyncio.AbstractEventLoop, slots: list[RequestBundle[Request]]) -> None:
        jobs = [
            SampleJob(slot.items, stream=self._requested_streams.pop(id(slot.items[0]), None))
            for slot in slots
        ]
        try:
            self._start_jobs(jobs)
        except EngineError as error:  # the engine is closed: callers in the batcher must learn of it too
            for job in jobs:
                job.future.set_exception(error)
        for slot, job in zip(slots, jobs, strict=True):
            assert slot.future is not None
            job.future.add_done_callback(partial(pass_result, loop, slot.future))
            slot.future.add_done_callback(partial(self._withdraw_job, job))

    def _withdraw_job(self, job: SampleJob, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            return
        with suppress(EngineError):  # a closed engine has nothing in flight
            for request in job.requests:
                self._post_command(partial(self._core.cancel, request.id))

    def _start_jobs(self, jobs: list[SampleJob]) -> list[SampleJob]:
        def add() -> None:
            for job in jobs:
                self._add_job(job)

        self._post_command(add)
        return jobs

    def _add_job(self, job: SampleJob) -> None:
        """Add all requests of a job, or none: then the job fails."""
        if taken := [request.id for request in job.requests if request.id in self._jobs]:
            job.future.set_exception(
                InputError(f"request id {taken[0]!r} is already in flight; give each request its own id")
            )
            return
        for request in job.requests:
            self._core.add_request(request)
            self._jobs[request.id] = job
        if job.stream is not None:
            self._streams[job.requests[0].id] = job.stream

    def _run_in_worker(self, function: Callable[[], T]) -> T:
        """Run a function in the worker, between two steps, and wait for its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post_command(run)
        return future.result()

    def _post_command(self, command: Callable[[], Any]) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            if self._worker is None:
                work = (weakref.ref(self), self._commands)
                self._worker = threading.Thread(
                    target=_run_worker, args=work, name="stepwell-engine", daemon=True
                )
                weakref.finalize(self, self._commands.put, None).atexit = False
                self._worker.start()
            self._commands.put(command)  # under the lock: no command may follow `close`

    def _do_work(self, command: Callable[[], Any] | None) -> bool:
        """Do a command, then others and steps until nothing is left to do; false: the engine was closed."""
        while command is not None:
            try:
                command()
            except EngineError as error:
                self._fail_all(error)
            except Exception as error:  # callers must not wait for a result that never comes
                failure = EngineError(f"sampling failed: {error!r}")
                failure.__cause__ = error
                self._fail_all(failure)
            try:
                command = self._commands.get(block=False)
            except queue.Empty:
                if not self._core.is_busy:
                    return True
                command = self._step_core
        self._fail_all(EngineError("the engine was closed with requests in flight"))
        return False

    def _step_core(self) -> None:
        finished = self._core.step()
        if self._streams:
            news = collect_new_tokens(self._streams, finished, self._core.read_new_tokens)
            deliver_tokens(news)
        for done in finished:
            self._jobs.pop(done.id).add_result(done)

    def _fail_all(self, error: EngineError) -> None:
        """Empty the batch and fail every job with `error`."""
        self._core.abort_all()
        jobs = set(self._jobs.values())
        self._jobs.clear()
        self._streams.clear()
        for job in jobs:
            job.future.set_exception(error)


def _run_worker(
    held: weakref.ref[EmbeddedEngine], commands: queue.SimpleQueue[Callable[[], None] | None]
) -> None:
    """Work for an engine until it is closed, or until nobody holds it any more."""
    while True:
        command = commands.get()
        engine = held()
        if engine is None or not engine._do_work(command):
            return
        del command, engine  # while it waits, the thread holds neither
