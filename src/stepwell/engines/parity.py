"""The parity check: trainer and engine must agree about tokens the engine just sampled.

Both compute the logprob of the same tokens under the same weights. When they agree within
a stated tolerance, a fresh sample's ratio is 1 and the run's data are what they claim to
be; when they do not, every gradient is wrong and the run should stop. `check_parity` says
which, by how much, and what the pattern of the difference points to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from stepwell.core.arrays import FloatArray
from stepwell.core.errors import InputError, ParityError
from stepwell.core.gaps import Gaps, step_and_token
from stepwell.core.protocols import Scorer
from stepwell.core.step import Step

TOLERANCE = {"float64": 1e-5, "float32": 1e-3, "bfloat16": 1.0}
"""Largest absolute difference of a logprob to expect, by the dtype the engine runs in; on average a tenth of
it. In float32, unlikely tokens of a trained tiny model were seen to differ by up to 2e-4. In bfloat16 the
same model summed in another order differs by 0.05 on average (SmolLM2-135M on text), by 0.28 in the worst of
700 tokens; engine and trainer by 0.29 to 0.39 in the worst of 11,000: there the average has to tell."""


def check_parity(
    scorer: Scorer, steps: Sequence[Step], tolerance: float = TOLERANCE["float32"], *, strict: bool = True
) -> Gaps:
    """Compare the steps' `behavior_logprobs` with the scorer's; raise `ParityError` beyond tolerance.

    With `strict=False` the gaps are returned either way.
    """
    if not steps:
        raise InputError("steps is empty: parity needs at least one freshly sampled step")
    if not tolerance > 0:
        raise InputError(f"tolerance must be positive, got {tolerance}")
    engine = [step.behavior_logprobs for step in steps]
    for i, (step, logprobs) in enumerate(zip(steps, engine, strict=True)):
        if logprobs.size == 0 or logprobs.size != step.num_units:
            raise InputError(
                f"steps[{i}] carries no behavior_logprobs; parity needs steps the engine sampled"
            )
    trainer = scorer.score(steps)
    if [len(t) for t in trainer] != [len(e) for e in engine]:
        raise ParityError(
            "the trainer scored other tokens: its logprobs have other lengths than the engine's"
        )
    gaps = Gaps.between(np.concatenate(engine), np.concatenate(trainer), partial(_name_of, steps))
    if strict and not gaps.within(tolerance):
        limit = f"tolerance {tolerance:.3g}, a tenth of it on average"
        raise ParityError(f"{gaps}; {limit}. {_diagnosis(steps, engine, trainer, tolerance)}")
    return gaps


def _name_of(steps: Sequence[Step], index: int) -> str:
    step, token = step_and_token(index, [step.num_units for step in steps])
    return f"step {step}, token {token} of {steps[step].num_units}"


def _diagnosis(
    steps: Sequence[Step], engine: list[FloatArray], trainer: list[FloatArray], tolerance: float
) -> str:
    """The likeliest cause, from how the difference is spread."""
    gaps = [np.abs(t - e) for t, e in zip(trainer, engine, strict=True)]
    flat = np.concatenate(gaps)
    if not np.isfinite(flat).all():
        return "Some logprobs are not finite: the trainer's weights or the engine's are broken."
    if any(step.policy_version.first != step.policy_version.last for step in steps):
        return "Some steps span several weight versions; check parity on steps sampled under one."
    shifted = [np.abs(t[:-1] - e[1:]) for t, e in zip(trainer, engine, strict=True) if len(e) > 2]
    if shifted and np.concatenate(shifted).max() <= tolerance:
        return "The trainer's values equal the engine's one token later: its labels are shifted by one."
    hot = {step.sampling.temperature for step in steps} - {0.0, 1.0}
    cold = [
        gap.max() <= tolerance for gap, s in zip(gaps, steps, strict=True) if s.sampling.temperature in (0, 1)
    ]
    if hot and all(cold):
        return f"Only steps at temperature {sorted(hot)} differ: the trainer must divide logits by it."
    if (flat > tolerance).mean() < 0.05:
        return "Few tokens differ: rounding (a lower precision on one side) or a stale cache in the engine."
    return "Most tokens differ: the two hold different weights; compare fingerprints and versions."
