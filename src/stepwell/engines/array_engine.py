"""The engine of robot policies: one pass per batch of states, inside this process.

    engine = ArrayEngine(policy.model)
    samples = await engine.generate([Request(ArrayState(arrays, instruction))])

A request's sample depends on weights, state, temperature and seed, never on its batch (up to
rounding): its random numbers come from its own seed. An action takes one pass, so there is
nothing to cache. A lock lets new weights in between two batches only, so a sample has one version.

A flow head's sample also carries `draws["row_logprobs"]` [K, C]: what each action of the chunk adds
to the logprob of a transition. The code that executes the chunk keeps the rows that were executed.
"""

from __future__ import annotations

import asyncio
import copy as copying
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import EngineError, InputError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import ArrayAction, ArrayState, FinishReason, Sampling
from stepwell.core.versions import VersionSpan
from stepwell.engines.weights import check_version, check_weights, copy_weights, fingerprint_of, read_version
from stepwell.policies.vla.inputs import stack_inputs
from stepwell.policies.vla.model import VLAModel

ROW_LOGPROBS = "row_logprobs"


class ArrayEngine:
    """Samples action chunks from a robot policy's model. A `Sampler`."""

    def __init__(
        self, model: VLAModel, config: EngineConfig | None = None, *, version: int = 0, copy: bool = True
    ) -> None:
        self.config = config or EngineConfig()
        self.model = (copying.deepcopy(model) if copy else model).eval().requires_grad_(False)
        self.version = version
        self._lock = threading.Lock()
        self._seeds = np.random.default_rng(self.config.seed)
        self._closed = False
        self.paused_s = 0.0  # in which weights were loaded or read instead of sampling

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        config: EngineConfig | None = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        version: int = 0,
    ) -> ArrayEngine:
        """Open a directory that `VLAPolicy.save_pretrained` wrote."""
        from stepwell.policies.vla.policy import VLAPolicy

        policy = VLAPolicy.from_pretrained(path, dtype=dtype, device=device)
        return cls(policy.model, config, version=version, copy=False)

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """Sample one action per request, in order; the pass runs in a thread."""
        return await asyncio.to_thread(self.generate_blocking, requests)

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """Do what `generate` does, for callers without an event loop."""
        for request in requests:
            if not isinstance(request.state, ArrayState):
                raise InputError(
                    f"request {request.id} has a token state; this engine samples from arrays only"
                )
        size = self.config.max_batch_size
        return [
            sampled
            for start in range(0, len(requests), size)
            for sampled in self._sample_batch(requests[start : start + size])
        ]

    def load_weights(
        self, version: int, source: Mapping[str, torch.Tensor] | str | Path, *, fingerprint: str | None = None
    ) -> None:
        """Replace the weights between two batches, or raise `WeightsError` and keep the old ones."""
        ready = read_version(self.model, version, self.version, source, fingerprint)
        self._swap_weights(version, ready)

    def update_weights(self, version: int, changed: Mapping[str, torch.Tensor]) -> None:
        """Replace these weights between two batches and keep the others, or raise and keep all."""
        check_version(version, self.version)
        self._swap_weights(version, check_weights(self.model, changed, is_partial=True))

    def live_weights(self) -> dict[str, torch.Tensor]:
        """The weights in use, to be read while no others are loaded."""
        return self.model.state_dict()

    def _swap_weights(self, version: int, ready: Mapping[str, torch.Tensor]) -> None:
        with self._lock:
            began = time.perf_counter()
            copy_weights(self.model, ready)
            self.version = version
            self.paused_s += time.perf_counter() - began

    def fingerprint(self) -> str:
        """Compute the exact fingerprint of the weights in use (see `weights.fingerprint_of`)."""
        with self._lock:
            began = time.perf_counter()
            found = fingerprint_of(self.model.state_dict())
            self.paused_s += time.perf_counter() - began
            return found

    def forget(self) -> None:
        """Do nothing: there is no cache, so samples never depend on earlier requests."""

    def close(self) -> None:
        """Refuse further requests."""
        self._closed = True

    def _sample_batch(self, requests: Sequence[Request]) -> list[Sampled]:
        with self._lock, torch.inference_mode():
            if self._closed:
                raise EngineError("the engine is closed")
            version = self.version
            seeds = [self._choose_seed(request) for request in requests]
            states: list[ArrayState] = [request.state for request in requests]  # type: ignore[misc]
            hidden = self.model.encode(*stack_inputs(states, self.model))
            heat = [request.params.temperature for request in requests]
            temperatures = torch.tensor(heat, dtype=hidden.dtype, device=hidden.device)
            emitted = self.model.head.sample(hidden, np.array(seeds, np.uint64), temperatures)
            rows = emitted.row_logprobs
            chunks, drawn, logprobs = (
                part.cpu().numpy() for part in (emitted.chunks, emitted.draws, emitted.logprobs)
            )
            parts = None if rows is None else rows.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise EngineError("sampling failed: logprobs are not finite; weights or states are broken")
        name, span = self.model.head.kind, VersionSpan.at(version)
        return [
            Sampled(
                ArrayAction(
                    chunks[i].astype(np.float32),
                    logprobs.shape[1],
                    {name: drawn[i]} | ({} if parts is None else {ROW_LOGPROBS: parts[i]}),
                ),
                logprobs[i].astype(np.float32),
                Sampling(heat[i], 1.0, seeds[i], FinishReason.STOP),
                span,
            )
            for i in range(len(requests))
        ]

    def _choose_seed(self, request: Request) -> int:
        seed = request.params.seed
        return int(self._seeds.integers(2**63)) if seed is None else seed % 2**63
