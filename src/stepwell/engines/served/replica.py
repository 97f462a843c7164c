"""One inference server of a run: its samples, its weights, and whether it can be trusted.

    update: hold requests ─► new weights ─► empty cache ─► go on ─► probes ─► trusted again

Lives on one event loop.

Invariants
* A sample leaves only if the server had checked weights when it began, and still has them, or newer checked
  ones, when it ends. Samples that end during an update wait for the probes.
* The server's label must be the one of the last update. A server that was restarted, or that another run
  gave weights to, is found before its samples are used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stepwell.core.errors import EngineError, InputError, ServerLostError, StepwellError, WeightsError
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.versions import VersionSpan
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.served.dialect import ServerDialect
from stepwell.engines.served.weight_group import WeightGroup
from stepwell.engines.served.weight_probe import WeightProbe

GROUP_TIMEOUT_S = 300.0
"""How long a member of a group of weights waits for the others."""
LABEL = "stepwell-"
"""How the labels of all runs begin."""


@dataclass(frozen=True, slots=True)
class UpdateTimes:
    """Seconds of one server's last update. While it is paused it samples nothing."""

    paused_s: float
    probes_s: float
    probe_gap: float  # mean difference of the probes' logprobs


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """What every server must have."""

    version: int
    label: str
    folder: Path | None  # or by collective:
    weights: Mapping[str, torch.Tensor] | None = None


class Replica:
    """One server."""

    def __init__(self, sampler: RemoteEngine, dialect: ServerDialect, probe: WeightProbe) -> None:
        self.sampler, self._dialect, self._probe = sampler, dialect, probe
        self.group = WeightGroup(sampler.client, GROUP_TIMEOUT_S)
        self.url = sampler.base_url
        self.num_inflight = 0
        self.version = -1
        self.times: UpdateTimes | None = None
        self.lost: ServerLostError | None = None  # why nobody should ask it
        self._label = ""
        self._fault: StepwellError | None = None
        self._calm = asyncio.Event()  # no update under way
        self._calm.set()
        self._pausing = asyncio.Lock()  # one pause at a time

    @property
    def is_live(self) -> bool:
        return self.lost is None

    async def check_server(self) -> None:
        """Raise unless the server can be reached, serves the model and takes weights."""
        await self._dialect.check_control(self.sampler.client)
        await self.sampler.check_ready()

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request. `ServerLostError`: the requests can be sent to another server."""
        self.num_inflight += len(requests)
        try:
            first = await self._settle()
            samples = await self.sampler.generate(requests)
            last = await self._settle()
            await self._check_label()
        finally:
            self.num_inflight -= len(requests)
        return [replace(sample, policy_version=VersionSpan(first, last)) for sample in samples]

    async def update_weights(self, published: PublishedWeights) -> None:
        """Give the server new weights and check that it has them."""
        self._calm.clear()
        try:
            began = time.perf_counter()
            async with self._pausing:
                await self._load_weights(published)
            loaded = time.perf_counter()
            gap = await self._ask_probes()
            self.times = UpdateTimes(loaded - began, time.perf_counter() - loaded, gap)
            self.version, self._label = published.version, published.label
            self._fault = self.lost = None
        except ServerLostError as error:
            self.lost = error
            raise
        except StepwellError as error:
            self._fault = error
            raise
        finally:
            self._calm.set()

    async def check_params(self, params: Sequence[SamplingParams]) -> None:
        """Raise `InputError` if the server returns other logprobs than these parameters need."""
        (probe, *_) = self._probe.make_requests()
        for each in params:
            await self.sampler.check_logprobs(replace(probe, params=each))

    async def drop_cache(self) -> None:
        """Forget the keys of earlier requests. Those under way compute theirs again, or end first."""
        client = self.sampler.client
        async with self._pausing:
            if self._dialect.drops_when_idle:
                await self._dialect.drop_cache(client)
                return
            await self._dialect.pause(client)
            try:
                await self._dialect.drop_cache(client)
            finally:
                await self._dialect.resume(client)

    async def _settle(self) -> int:
        """Wait for the end of an update; the version of the weights that passed the check."""
        await self._calm.wait()
        if self._fault is not None:
            raise self._fault
        if self.lost is not None:
            raise self.lost
        return self.version

    async def _check_label(self) -> None:
        before = self._label
        found = await self._dialect.read_label(self.sampler.client)
        if found in (before, self._label) or not self._calm.is_set():
            return
        if found.startswith(LABEL):
            raise WeightsError(
                f"{self.url} has the weights {found}, not {self._label}: another run gave it weights. Its "
                "samples were not used; give every run servers of its own"
            )
        raise ServerLostError(f"{self.url} was restarted: it has the weights {found!r}, not {self._label}")

    async def _load_weights(self, published: PublishedWeights) -> None:
        client, dialect = self.sampler.client, self._dialect
        await dialect.pause(client)
        try:
            if published.folder is not None:
                await dialect.load_folder(client, published.folder, published.label)
            else:
                await dialect.load_group(client, self.group, published.weights or {}, published.label)
            if not dialect.drops_when_idle:
                await dialect.drop_cache(client)
        except ServerLostError:
            raise
        except (EngineError, InputError) as error:
            where = f"in {published.folder}" if published.folder is not None else "that were broadcast"
            raise WeightsError(
                f"{self.url} did not load the weights {where}: {error}. Does it see this "
                "folder (engine.server.weights_folder), and does it serve the architecture of policy.model?"
            ) from error
        finally:
            await dialect.resume(client)

    async def _ask_probes(self) -> float:
        probe, client = self._probe, self.sampler.client
        samples = await self.sampler.generate(probe.make_requests())
        scores = await asyncio.gather(
            *(self._dialect.score_tokens(self.sampler, state) for state in probe.fixed)
        )
        gaps = await asyncio.to_thread(probe.check_samples, self.url, samples)
        await asyncio.to_thread(probe.check_move, self.url, scores)
        found = await self._dialect.read_label(client)
        if not found.startswith(LABEL):
            raise ServerLostError(f"{self.url} was restarted while it got weights")
        return gaps.mean_abs
