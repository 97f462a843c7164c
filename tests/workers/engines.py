"""Engines for tests of generator workers: made of numpy, quick to build, odd on demand."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepwell.core import (
    ArrayAction,
    ArrayState,
    EngineError,
    Request,
    Sampled,
    Sampling,
    VersionSpan,
    WeightsError,
)

SMALL = "tests.workers.engines:small"


def small(settings: Mapping[str, Any]) -> SmallEngine:
    """The factory."""
    return SmallEngine(float(settings.get("scale", 1.0)))


class SmallEngine:
    """Answers an array state with its first array times its weight; some instructions are orders."""

    def __init__(self, scale: float) -> None:
        self.weights: dict[str, np.ndarray] = {"scale": np.array([scale], np.float32)}
        self.version = 0
        self.num_forgotten = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        order = requests[0].state.instruction if requests else ""  # type: ignore[union-attr]
        first = self.version
        if order == "die":
            os._exit(5)
        if order == "raise":
            raise EngineError("out of memory")
        if order == "block":
            time.sleep(1000)
        while order.startswith("until") and self.version < int(order.split()[1]):
            await asyncio.sleep(0.01)
        return [self._sampled(request, VersionSpan(first, self.version)) for request in requests]

    def _sampled(self, request: Request, span: VersionSpan) -> Sampled:
        assert isinstance(request.state, ArrayState)
        value = next(iter(request.state.arrays.values()))
        chunk = value[None].astype(np.float32) * self.weights["scale"]
        action = ArrayAction(chunk, chunk.size, {"bins": (chunk > 0).astype(np.int16)})
        logprobs = -np.abs(chunk).ravel()
        return Sampled(action, logprobs, Sampling(seed=request.params.seed), span, self.num_forgotten)

    def load_weights(self, version: int, source: Mapping[str, Any]) -> None:
        found = {name: tensor.float().numpy().copy() for name, tensor in source.items()}
        if found.keys() != {"scale"}:
            raise WeightsError(f"these weights belong to another model: {sorted(found)}")
        self.weights, self.version = found, version

    def fingerprint(self) -> str:
        return hashlib.blake2b(self.weights["scale"].tobytes(), digest_size=8).hexdigest()

    def forget(self) -> None:
        self.num_forgotten += 1
