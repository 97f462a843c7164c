"""The engine of a run whose samples come from inference servers (vLLM, SGLang).

    trainer's weights ─► model copy ─► folder ─► every server: pause, load, empty cache, resume ─► probes
    requests ─► router ─► server of the conversation ─► samples, if the server is still trusted

It has the interface of `EmbeddedEngine`: `generate`, `load_weights`, `fingerprint`, `forget`, `close`. Its
copy of the policy's model samples nothing: it holds what the servers must have, writes it as a Hugging Face
directory, and scores the probes (`weight_probe.py`).

All traffic runs on one event loop in a thread of its own, so that connections outlive the loops of callers.

Invariants
* `load_weights` returns when every live server has the weights and passed the probes. It raises if one of
  them has others. A server that is gone is left out, and an error if it was the last one.
* A request moves to another server when its own is lost, with the same seed. A lost server that comes back
  gets the weights and the probes before its first request.
* The policy version of a sample spans all weights that were published while it was sampled.
"""

from __future__ import annotations

import asyncio
import copy as copying
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stepwell.config.engine import EngineConfig, RemoteEngineConfig
from stepwell.core.errors import ConfigError, EngineError, ServerLostError, StepwellError, WeightsError
from stepwell.core.ids import make_id
from stepwell.core.images import ImageStore
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.served.dialect import ServerDialect, find_model_name
from stepwell.engines.served.images import ServedImages, refuse_images, rename_weights
from stepwell.engines.served.replica import LABEL, PublishedWeights, Replica, UpdateTimes
from stepwell.engines.served.router import ConversationRouter
from stepwell.engines.served.sglang import SglangDialect
from stepwell.engines.served.vllm import VllmDialect
from stepwell.engines.served.weight_folder import WeightFolder
from stepwell.engines.served.weight_probe import WeightProbe
from stepwell.engines.server_client import ServerClient, gather_all
from stepwell.engines.weights import (
    check_weights,
    copy_weights,
    drop_tied_heads,
    fingerprint_of,
    read_weights,
)
from stepwell.rendering.vision import ImageFormat

T = TypeVar("T")
_MAX_MOVES = 8  # of one request: more means that servers come and go all the time


class ServedEngine:
    """Samples at the servers of `config.urls`. A `Sampler`.

    `folder` is where weights are written, unless the settings name another. `source` is the model's
    directory. `context_length` is the longest prompt and action that will be asked for, and `params` how.
    With an `image_format` prompts may contain images, whose pixels come from `image_store`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: EngineConfig,
        *,
        folder: str | Path,
        source: str | Path | None = None,
        context_length: int | None = None,
        params: Sequence[SamplingParams] = (),
        copy: bool = True,
        image_format: ImageFormat | None = None,
        image_store: ImageStore | None = None,
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.model = (copying.deepcopy(model) if copy else model).eval().requires_grad_(False)
        self._params = tuple(params)
        own = config.server.weights_folder
        self._images = self._open_images(image_format, image_store)
        rename = None if self._images is None else rename_weights
        self._files = WeightFolder(Path(own or folder), None if source is None else Path(source), rename)
        is_vllm = config.backend == "vllm"
        self._dialect: ServerDialect = VllmDialect(self._images) if is_vllm else SglangDialect()
        self._token = make_id("w").rpartition("_")[2][-12:]
        self._seeds = np.random.default_rng(config.seed)
        self._published: PublishedWeights | None = None
        self._fingerprint = ""
        self.paused_s = 0.0  # in all updates so far, of the server that was paused longest
        self._loading = threading.Lock()
        self._closed = False
        self._reviving: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepwell-served", daemon=True)
        self._thread.start()
        try:
            self._replicas = self._run(self._open_replicas(context_length))
        except BaseException:
            self._stop_loop()
            raise
        self._router = ConversationRouter(self._replicas)

    @property
    def version(self) -> int:
        """Version of the weights that were published last."""
        return -1 if self._published is None else self._published.version

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of prompt and action together."""
        return min(replica.sampler.max_length for replica in self._replicas)

    def list_times(self) -> dict[str, UpdateTimes]:
        """How long the last update took at each server."""
        return {replica.url: replica.times for replica in self._replicas if replica.times is not None}

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """Sample one action per request, in order. Cancelling the task ends the requests at the servers."""
        if not requests:
            return []
        call = asyncio.run_coroutine_threadsafe(self._answer_requests(list(requests)), self._loop)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine was closed with requests in flight") from None
            raise

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """Do what `generate` does, for callers without an event loop."""
        return self._run(self._answer_requests(list(requests))) if requests else []

    def load_weights(self, version: int, source: Mapping[str, Any] | str | Path) -> None:
        """Give all servers new weights; returns when they were checked. Requests under way go on."""
        with self._loading:
            if version < self.version:
                raise WeightsError(
                    f"version {version} is older than the engine's {self.version}; versions only increase"
                )
            copy_weights(self.model, check_weights(self.model, read_weights(source)))
            label = f"{LABEL}{self._token}-{version}"
            if self._published is not None and self._published.label == label:
                label = f"{label}-{make_id('w')[-6:]}"  # the same version again, such as after a warm start
            if self.config.server.weight_transfer == "folder":
                folder, fingerprint = self._files.write_model(self.model, label)
                published = PublishedWeights(version, label, folder)
            else:
                weights = self.model.state_dict()
                fingerprint = fingerprint_of(weights)
                published = PublishedWeights(version, label, None, drop_tied_heads(weights))
            self._probe.note_new_weights()
            self._run(self._update_all(published))
            self._fingerprint = fingerprint
            self.paused_s += max((times.paused_s for times in self.list_times().values()), default=0.0)
            self._files.remove_old()

    def fingerprint(self) -> str:
        """The fingerprint of the weights that all live servers were given and passed the probes with."""
        if not self._fingerprint:
            raise EngineError("no weights were published to the servers yet; call load_weights first")
        return self._fingerprint

    def forget(self) -> None:
        """Drop the servers' caches, so that later samples do not depend on earlier requests."""
        self._run(self._drop_caches())

    def close(self) -> None:
        """Close connections and remove the written weights; requests under way fail. Twice is fine."""
        self._closed = True
        if self._thread.is_alive():
            self._run(self._close_all())
            self._stop_loop()
        self._files.remove_all()

    def __enter__(self) -> ServedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_images(
        self, image_format: ImageFormat | None, image_store: ImageStore | None
    ) -> ServedImages | None:
        if image_format is None:
            return None
        if (reason := refuse_images(self.config.backend, image_format)) is not None:
            raise ConfigError(f"engine.backend: {reason}; use engine.backend=embedded")
        return ServedImages(image_format, ImageStore() if image_store is None else image_store)

    # --- on the event loop of the engine ----------------------------------------------------------

    async def _open_replicas(self, context_length: int | None) -> list[Replica]:
        settings = self.config.server
        common = RemoteEngineConfig(
            max_connections=settings.max_connections,
            connect_timeout_s=settings.connect_timeout_s,
            timeout_s=settings.timeout_s,
            max_retries=settings.max_retries,
            backoff_s=settings.backoff_s,
            api_key_env=settings.api_key_env,
            logprobs_mode=settings.logprobs_mode,
        )
        samplers = await asyncio.gather(*(self._open_sampler(url, common) for url in self.config.urls))
        shortest = min(samplers, key=lambda sampler: sampler.max_length)
        if context_length is not None and shortest.max_length < context_length:
            raise ConfigError(
                f"{shortest.base_url} has a context of {shortest.max_length} tokens, the run needs "
                f"{context_length}; set engine.max_length={shortest.max_length} or start the server with a "
                "longer one (vLLM: --max-model-len, SGLang: --context-length)"
            )
        special = getattr(self.tokenizer, "all_special_ids", None) or ()
        self._probe = WeightProbe(
            self.model,
            settings.num_probes,
            settings.probe_tokens,
            shortest.max_length,
            special,
            images=self._images,
        )
        return [Replica(sampler, self._dialect, self._probe) for sampler in samplers]

    async def _open_sampler(self, url: str, config: RemoteEngineConfig) -> RemoteEngine:
        client = ServerClient(url, config, model=self.config.server.model or "")
        try:
            wanted = self.config.server.model if self._dialect.has_fixed_name else None
            name = await find_model_name(client, wanted)
            await self._dialect.check_control(client)
        finally:
            await client.aclose()
        sampler = self._dialect.make_sampler(url, name, config, self.tokenizer)
        await sampler.check_ready()
        return sampler

    async def _answer_requests(self, requests: list[Request]) -> list[Sampled]:
        """Send requests to their servers; those of a server that is lost go to others."""
        if self._published is None:
            raise EngineError("no weights were published to the servers yet; call load_weights first")
        requests = [self._fix_seed(request) for request in requests]
        found: dict[int, Sampled] = {}
        left = list(range(len(requests)))
        for _ in range(_MAX_MOVES):
            parts = self._router.split_requests([requests[i] for i in left])
            if not parts:
                await self._await_revival()
                continue
            places = [[left[i] for i in part] for _, part in parts]
            answers = await gather_all(
                [
                    self._ask_replica(replica, [requests[i] for i in row])
                    for (replica, _), row in zip(parts, places, strict=True)
                ]
            )
            for row, samples in zip(places, answers, strict=True):
                found.update(zip(row, samples or [], strict=False))
            left = [i for i in left if i not in found]
            if not left:
                return [found[i] for i in range(len(requests))]
        raise EngineError(f"requests moved {_MAX_MOVES} times: servers come and go; look at their logs")

    def _fix_seed(self, request: Request) -> Request:
        """The seed is fixed before the first attempt, so that a request that moves stays the same."""
        if request.params.seed is not None:
            return request
        return replace(request, params=request.params.with_seed(int(self._seeds.integers(2**63))))

    async def _ask_replica(self, replica: Replica, requests: list[Request]) -> list[Sampled] | None:
        """Samples, or None if the server is lost."""
        try:
            return await replica.generate(requests)
        except ServerLostError as error:
            if replica.is_live:
                replica.lost = error
            if replica.url not in self._reviving:
                task = asyncio.ensure_future(self._revive_replica(replica))
                self._reviving[replica.url] = task
                task.add_done_callback(lambda _: self._reviving.pop(replica.url, None))
            return None

    async def _revive_replica(self, replica: Replica) -> None:
        """Give the published weights to a server that is back. If it is not, it stays lost."""
        published = self._published
        assert published is not None
        try:
            await replica.check_server()
            await replica.update_weights(published)
        except StepwellError as error:
            replica.lost = ServerLostError(str(error))

    async def _await_revival(self) -> None:
        """Wait until a lost server is back; raise if none will be."""
        if self._reviving:
            await asyncio.wait(list(self._reviving.values()), return_when=asyncio.FIRST_COMPLETED)
        elif not any(replica.is_live for replica in self._replicas):
            raise EngineError(f"no server is left: {self._describe_lost()}")

    def _describe_lost(self) -> str:
        return "; ".join(f"{r.url}: {r.lost}" for r in self._replicas if r.lost is not None)

    async def _update_all(self, published: PublishedWeights) -> None:
        """Weights for every server, also for lost ones, which may be back."""
        if self._reviving:
            await asyncio.wait(list(self._reviving.values()))
        self._published = published
        await gather_all([self._update_replica(replica, published) for replica in self._replicas])
        if not any(replica.is_live for replica in self._replicas):
            raise EngineError(f"no server is left: {self._describe_lost()}")

    async def _update_replica(self, replica: Replica, published: PublishedWeights) -> None:
        try:
            if not replica.is_live:
                await replica.check_server()
            await replica.update_weights(published)
            if self._params and replica.is_live:
                await replica.check_params(self._params)
        except ServerLostError as error:
            replica.lost = error

    async def _drop_caches(self) -> None:
        self._router.forget_all()
        for replica in self._replicas:
            if replica.is_live:
                try:
                    await replica.drop_cache()
                except ServerLostError as error:
                    replica.lost = error

    async def _close_all(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for replica in self._replicas:
            replica.group.close()
            await replica.sampler.aclose()

    # --- the thread of the event loop -------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
