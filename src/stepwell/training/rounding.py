"""How much rounding alone moves a policy's logprobs: the same weights, computed with in 16 and in 32 bits."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch

from stepwell.core import Gaps, Step
from stepwell.core.arrays import FloatArray
from stepwell.training.policy import Policy

MAX_TOKENS = 8192
_CHUNK = 64


def measure_rounding(policy: Policy, steps: Sequence[Step], max_tokens: int = MAX_TOKENS) -> Gaps | None:
    """Compare a policy with itself in float32, on steps spread evenly over `steps`.

    None where the device's memory does not hold the float32 copy for the moment that this takes.
    """
    chosen = _choose_steps(steps, max_tokens)
    wide = copy.copy(policy)
    try:
        wide.model = copy.deepcopy(policy.model).float()
        exact = _score(wide, chosen)
    except torch.OutOfMemoryError:
        return None
    return Gaps.between(exact, _score(policy, chosen), str)


def _choose_steps(steps: Sequence[Step], max_tokens: int) -> list[Step]:
    num_tokens = sum(step.num_units for step in steps)
    return list(steps[:: max(1, -(-num_tokens // max_tokens))])


def _score(policy: Policy, steps: Sequence[Step]) -> FloatArray:
    chunks = (policy.score(steps[i : i + _CHUNK]) for i in range(0, len(steps), _CHUNK))
    joined: FloatArray = np.concatenate([logprobs for chunk in chunks for logprobs in chunk])
    return joined
