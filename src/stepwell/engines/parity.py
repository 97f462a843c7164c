"""The parity check: engine and trainer must agree about tokens that the engine just sampled.

Both compute the logprobs of the same tokens under the same weights. If they agree, the ratio of a fresh
sample is 1 and the data are what they claim to be. If they do not, every gradient is wrong and the run
should stop. Rounding also makes them differ, and in bfloat16 single tokens differ a lot, so the check
looks at many tokens:

    typical mean        a tenth of the tolerance; in 16 bits also one and a half times what rounding explains
    typical quantile    half of the tolerance (99 of 100 tokens)
    tokens beyond       at most one in a thousand over the last updates, and always at least one is allowed
    any token           what no rounding of this dtype explains

Rounding is measured, not guessed: the trainer scores some of the same tokens again, with the same
weights in 32 bits. Its distance to that result is what 16 bits cost. The engine rounds as often, so a
healthy engine is about as far from the trainer as the trainer is from 32 bits.

Invariants
* One outlier is reported and never fatal in 16 bits.
* A fault that moves logprobs by more than rounding does is found in the first update that it touches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepwell.core.arrays import FloatArray
from stepwell.core.errors import InputError, ParityError
from stepwell.core.gaps import Gaps, step_and_token
from stepwell.core.protocols import Scorer
from stepwell.core.step import Step

TOLERANCE = {"float64": 1e-5, "float32": 1e-3, "bfloat16": 1.0}
"""Difference of a logprob that only a few tokens may exceed, by the dtype of the engine."""
IMPOSSIBLE = {"float64": 1e-3, "float32": 0.1}
"""Difference that rounding in this dtype never makes: one such token is a fault."""
WINDOW = 16
"""Updates over which tokens beyond the tolerance are counted."""
MAX_SHARE_BEYOND = 1e-3
QUANTILE = 0.99
ROUNDING_AGE = 25
"""Updates after which rounding is measured again; weights that become steeper round more."""
LEAST_ROUNDING_LIMIT = 5e-4
"""A policy that is certain of every token hardly rounds; below this mean nothing is called a fault."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check says about one update: a fault, an outlier, or neither."""

    fault: str | None = None
    outlier: str | None = None


class ParityMonitor:
    """Judges the gaps of one update after the other; remembers the last few."""

    def __init__(self, dtype: str, tolerance: float | None = None) -> None:
        if dtype not in TOLERANCE:
            raise InputError(f"no parity limits for dtype {dtype}; known: {', '.join(TOLERANCE)}")
        self.dtype = dtype
        self.tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
        if not self.tolerance > 0:
            raise InputError(f"tolerance must be positive, got {tolerance}")
        self.rounding: float | None = None  # typical mean gap that rounding alone explains
        self._rounding_age = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def judge(self, gaps: Gaps, measure_rounding: Callable[[], Gaps | None] | None = None) -> Verdict:
        """Tell a fault from rounding. `measure_rounding` compares the trainer with itself in 32 bits."""
        self._recent.append((gaps.num_tokens, gaps.count_beyond(self.tolerance)))
        fault = self._find_fault(gaps) or self._find_excess(gaps, measure_rounding)
        if fault is not None:
            self._recent.pop()  # a run that goes on all the same is not blamed twice
            return Verdict(fault=fault)
        return Verdict(outlier=str(gaps) if gaps.max_abs > self.tolerance else None)

    def _find_fault(self, gaps: Gaps) -> str | None:
        limit = IMPOSSIBLE.get(self.dtype, np.inf) * self.tolerance / TOLERANCE[self.dtype]
        if not gaps.max_abs < np.inf:
            return "some logprobs are not finite"
        if gaps.max_abs > limit:
            return f"a difference above {limit:g} is not rounding in {self.dtype}"
        if gaps.typical_mean > 0.1 * self.tolerance:
            return f"the typical mean is {gaps.typical_mean:.3g}, above {0.1 * self.tolerance:g}"
        if (high := gaps.typical_quantile(QUANTILE)) > 0.5 * self.tolerance:
            return f"the {QUANTILE:g} quantile is {high:.3g}, above {0.5 * self.tolerance:g}"
        num_tokens, num_beyond = (sum(column) for column in zip(*self._recent, strict=True))
        if num_beyond > max(1.0, MAX_SHARE_BEYOND * num_tokens):
            return (
                f"{num_beyond} of the last {num_tokens} tokens differ by more than {self.tolerance:g}; "
                f"one in {1 / MAX_SHARE_BEYOND:.0f} may"
            )
        return None

    def _find_excess(self, gaps: Gaps, measure_rounding: Callable[[], Gaps | None] | None) -> str | None:
        """A mean that is too large for rounding; only 16 bits round enough to ask."""
        if self.dtype != "bfloat16" or measure_rounding is None:
            return None
        self._rounding_age += 1
        is_known = self.rounding is not None and self._rounding_age < ROUNDING_AGE
        if is_known and gaps.typical_mean <= self._rounding_limit(gaps.num_tokens):
            return None
        if (measured := measure_rounding()) is None:
            return None
        self.rounding, self._rounding_age = measured.typical_mean, 0
        if gaps.typical_mean <= (limit := self._rounding_limit(min(gaps.num_tokens, measured.num_tokens))):
            return None
        return (
            f"the typical mean is {gaps.typical_mean:.3g}, but rounding to {self.dtype} explains only "
            f"{self.rounding:.3g} (limit {limit:.3g})"
        )

    def _rounding_limit(self, num_tokens: int) -> float:
        """One and a half times the rounding; more for few tokens, whose means vary more."""
        assert self.rounding is not None
        return max(LEAST_ROUNDING_LIMIT, 1.5 * (1.0 + 10.0 / num_tokens**0.5) * self.rounding)


def check_parity(
    scorer: Scorer,
    steps: Sequence[Step],
    tolerance: float | None = None,
    *,
    dtype: str = "float32",
    strict: bool = True,
) -> Gaps:
    """Compare the steps' `behavior_logprobs` with the scorer's; raise `ParityError` for a fault.

    With `strict=False` the gaps are returned either way.
    """
    if not steps:
        raise InputError("steps is empty: parity needs at least one freshly sampled step")
    monitor = ParityMonitor(dtype, tolerance)
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
    if strict and (fault := monitor.judge(gaps).fault) is not None:
        raise ParityError(f"{gaps}; {fault}. {_diagnosis(steps, engine, trainer, monitor.tolerance)}")
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
