"""An engine of your own: every token of an action is equally likely. A baseline, and the smallest engine.

    python examples/own_engine.py

Episodes need `generate_blocking` alone (`Rollout`); the gateway needs `generate`. A generator process
(`workers.ProcessGenerator("g", "examples/own_engine.py:build", {...})`) needs all of these methods.
A run that trains builds the embedded engine: no setting names another one yet.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepwell.core import Request, Sampled, Sampling, SamplingParams, TokenAction, TokenState, VersionSpan


class UniformEngine:
    """Samples each of `length` tokens from `token_ids`, whatever the prompt."""

    def __init__(self, token_ids: Sequence[int], length: int = 4) -> None:
        self.token_ids, self.length, self.version = np.asarray(token_ids, np.int32), length, 0

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order; the same seed gives the same action."""
        return [self._sample(request) for request in requests]

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return self.generate_blocking(requests)

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        self.version = version  # nothing else: it has no weights

    def fingerprint(self) -> str:
        return f"uniform-{self.version}"

    def forget(self) -> None:
        """Drop caches; it keeps none."""

    def _sample(self, request: Request) -> Sampled:
        ids = np.random.default_rng(request.params.seed).choice(self.token_ids, self.length)
        logprobs = np.full(self.length, -math.log(len(self.token_ids)), np.float32)
        sampling = Sampling(seed=request.params.seed)
        return Sampled(TokenAction(ids), logprobs, sampling, VersionSpan(self.version, self.version))


def build(settings: Mapping[str, Any]) -> UniformEngine:
    """What a generator process is told to call."""
    return UniformEngine(settings["token_ids"], settings.get("length", 4))


if __name__ == "__main__":
    prompt = TokenState(np.array([1, 2, 3], np.int32))
    for sample in UniformEngine(range(256)).generate_blocking([Request(prompt, SamplingParams(seed=1))]):
        print(sample.action, sample.logprobs)
