"""Errors of engine and trainer, measured against float32 with the same weights.

The true logprob of a token is computed with the policy's weights in float32. In 16 bits both engine
and trainer differ from it by rounding. Their errors are compared token by token (`core/logprob_gaps.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch

from stepwell.core import LogprobErrors, Step, TokenAction
from stepwell.core.arrays import FloatArray, IntArray
from stepwell.training.policy import Policy

MAX_TOKENS = 16_384
_CHUNK = 64


def measure_errors(
    policy: Policy,
    steps: Sequence[Step],
    version: int | None = None,
    share: float = 1.0,
    max_tokens: int = MAX_TOKENS,
) -> LogprobErrors | None:
    """Measure errors of engine and trainer on a share of the steps of `version` (None: any), evenly spread.

    Returns None if the device's memory is too small for a temporary float32 copy.
    """
    fresh = [step for step in steps if version is None or step.policy_version.first >= version]
    chosen = _choose_steps(fresh, share, max_tokens)
    wide = copy.copy(policy)
    try:
        wide.model = copy.deepcopy(policy.model).float()
        truth = _score_chunks(wide, chosen)
    except torch.OutOfMemoryError:
        return None
    engine = np.concatenate([step.behavior_logprobs for step in chosen])
    trainer = _score_chunks(policy, chosen)
    token_ids = np.concatenate([_name_units(step) for step in chosen])
    return LogprobErrors.against(truth, engine=engine, trainer=trainer, token_ids=token_ids)


def _name_units(step: Step) -> IntArray:
    """The ids of an action's tokens; the numbers of a robot's action by their place in it."""
    action = step.action
    return action.action_ids if isinstance(action, TokenAction) else np.arange(step.num_units, dtype=np.int32)


def _choose_steps(steps: Sequence[Step], share: float, max_tokens: int) -> list[Step]:
    num_tokens = sum(step.num_units for step in steps)
    stride = max(round(1 / share), math.ceil(num_tokens / (share * max_tokens)))
    return list(steps[:: max(1, stride)])


def _score_chunks(policy: Policy, steps: Sequence[Step]) -> FloatArray:
    chunks = (policy.score(steps[i : i + _CHUNK]) for i in range(0, len(steps), _CHUNK))
    joined: FloatArray = np.concatenate([logprobs for chunk in chunks for logprobs in chunk])
    return joined
