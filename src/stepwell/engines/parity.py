"""The parity check: engine and trainer must compute the same logprobs for freshly sampled tokens.

Both compute the logprobs of the same tokens under the same weights. If they agree, the ratio of a fresh
sample is 1, as it should be. If they do not, every gradient is wrong and the run should stop. Rounding
also makes them differ, and in bfloat16 single tokens differ a lot. So the check looks at many tokens and
reports a fault beyond these limits:

    typical mean        a tenth of the tolerance
    typical quantile    half of the tolerance (99 of 100 tokens)
    tokens beyond       one in a thousand over the last updates; one is always allowed
    any token           a difference that rounding in this dtype cannot explain
    in 16 bits          the engine is farther from the truth than the trainer in too many tokens

The truth is computed: the trainer scores some of the tokens again with the same weights in 32 bits.
Rounding alone makes either side the worse one in about half of the tokens, whatever its size. Tokens of one
id round together, so chance is measured by ids (`core/logprob_gaps.py`). A fault of the engine makes the
engine the worse one more often, even if it is as small as rounding.

    every update ─► a quarter of the tokens ─► suspicious? ─► all tokens ─► too often?       ─► fault
                                                   └► no ─► the last updates together: too often? ─► fault

Invariants
* One outlier is reported and never fatal in 16 bits. Nor are large gaps, however many tokens are outliers
  then, if neither side is the worse one: the logits of a policy that falls apart grow, and round more.
* A fault is looked for in every update, also one that does not move the mean gap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepwell.core.arrays import FloatArray
from stepwell.core.errors import InputError, ParityError
from stepwell.core.logprob_gaps import LogprobErrors, LogprobGaps, MeasureErrors, step_and_token
from stepwell.core.protocols import Scorer
from stepwell.core.step import Step

TOLERANCE = {"float64": 1e-5, "float32": 1e-3, "bfloat16": 1.0}
"""Logprob difference that only a few tokens may exceed, by the dtype of the engine."""
IMPOSSIBLE = {"float64": 1e-3, "float32": 0.1}
"""Logprob difference that rounding in this dtype never causes: one such token is a fault."""
WINDOW = 16
"""Updates over which tokens beyond the tolerance are counted."""
MAX_SHARE_BEYOND = 1e-3
QUANTILE = 0.99
PROBE_SHARE = 0.25
"""Share of an update's tokens for which the truth is always computed."""
SUSPICIOUS_BIAS = 2.0
"""Standard errors above one half at which the truth is computed for all tokens."""
MAX_BIAS = 5.0
"""Standard errors above one half that a correct engine may show, in one update or over the last ones."""
MAX_ENGINE_FARTHER = 0.57
"""Share of tokens in which a correct engine may always be the worse one: kernels round a little apart."""
SPANS = (1, 2, 4, 8)
"""Last updates that are judged together, beside the window: healthy ones before do not hide a new fault."""
RETRY_AFTER = 10
"""Updates until the truth is tried again after memory was too small for it."""


@dataclass(frozen=True, slots=True)
class ParityVerdict:
    """The result of the check for one update: a fault, an outlier, or neither."""

    fault: str | None = None
    outlier: str | None = None


class ParityMonitor:
    """Judges the logprob gaps of one update after another; remembers the last few."""

    def __init__(self, dtype: str, tolerance: float | None = None) -> None:
        if dtype not in TOLERANCE:
            raise InputError(f"no parity limits for dtype {dtype}; known: {', '.join(TOLERANCE)}")
        self.dtype = dtype
        self.tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
        if not self.tolerance > 0:
            raise InputError(f"tolerance must be positive, got {tolerance}")
        self.errors: LogprobErrors | None = None  # of the last update, if the truth was computed
        self._pause = 0  # updates until the truth is computed again
        self._biases: deque[_Bias] = deque(maxlen=WINDOW)
        self._recent: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def judge_gaps(self, gaps: LogprobGaps, measure_errors: MeasureErrors | None = None) -> ParityVerdict:
        """Tell faults from rounding. `measure_errors` compares a share of the steps with the truth."""
        self.errors = None
        large = self._find_large_gaps(gaps)
        excuse = None if large is None else self._excuse_rounding(measure_errors)
        size = self._find_many_beyond(gaps) if large is None else large if excuse is None else None
        fault = self._find_impossible(gaps) or size or self._find_bias(measure_errors)
        if fault is not None:
            return ParityVerdict(fault=fault)
        if large is not None:
            return ParityVerdict(outlier=f"{gaps}; {large}; {excuse}")
        return ParityVerdict(outlier=str(gaps) if gaps.max_abs > self.tolerance else None)

    def _find_impossible(self, gaps: LogprobGaps) -> str | None:
        limit = IMPOSSIBLE.get(self.dtype, np.inf) * self.tolerance / TOLERANCE[self.dtype]
        if not gaps.max_abs < np.inf:
            return "some logprobs are not finite"
        if gaps.max_abs > limit:
            return f"a difference above {limit:g} cannot be rounding in {self.dtype}"
        return None

    def _find_many_beyond(self, gaps: LogprobGaps) -> str | None:
        """Find too many outliers in this update and the last ones whose typical gaps were small."""
        self._recent.append((gaps.num_tokens, gaps.count_beyond(self.tolerance)))
        num_tokens, num_beyond = (sum(column) for column in zip(*self._recent, strict=True))
        if num_beyond > max(1.0, MAX_SHARE_BEYOND * num_tokens):
            self._recent.pop()  # a run that continues anyway does not get the same fault twice
            return (
                f"{num_beyond} of the last {num_tokens} tokens differ by more than {self.tolerance:g}; "
                f"one in {1 / MAX_SHARE_BEYOND:.0f} may"
            )
        return None

    def _find_large_gaps(self, gaps: LogprobGaps) -> str | None:
        """Find gaps that are large in most tokens."""
        if gaps.typical_mean > 0.1 * self.tolerance:
            return f"the typical mean is {gaps.typical_mean:.3g}, above {0.1 * self.tolerance:g}"
        if (high := gaps.compute_typical_quantile(QUANTILE)) > 0.5 * self.tolerance:
            return f"the {QUANTILE:g} quantile is {high:.3g}, above {0.5 * self.tolerance:g}"
        return None

    def _excuse_rounding(self, measure_errors: MeasureErrors | None) -> str | None:
        """Excuse large gaps if neither side is farther from the truth: then it is rounding."""
        if self.dtype != "bfloat16" or measure_errors is None or (errors := measure_errors(1.0)) is None:
            return None
        bias = _Bias.of(errors)
        if bias.num_tokens == 0 or bias.is_one_sided:
            return None
        return f"engine and trainer are equally far from the float32 result ({errors.engine_farther:.2f})"

    def _find_bias(self, measure_errors: MeasureErrors | None) -> str | None:
        """Find an engine that is too often the worse one; only 16 bits round enough for this."""
        if self.dtype != "bfloat16" or measure_errors is None:
            return None
        if self._pause > 0:
            self._pause -= 1
            return None
        errors = measure_errors(PROBE_SHARE)
        if errors is not None and errors.engine_bias > SUSPICIOUS_BIAS:
            errors = measure_errors(1.0)
        if errors is None:
            self._pause = RETRY_AFTER
            return None
        self.errors = errors
        self._biases.append(_Bias.of(errors))
        recent = list(self._biases)
        for count in sorted({len(recent), *(span for span in SPANS if span < len(recent))}):
            place = "this update" if count == 1 else f"the last {count} updates"
            if (fault := _Bias.sum(recent[-count:]).describe_fault(place)) is not None:
                self._biases.pop()
                return f"{fault} (this update: {_describe_sizes(errors)})"
        return None


@dataclass(frozen=True, slots=True)
class _Bias:
    """Tokens, those of them in which the engine was the worse one, and the variance of that count."""

    num_tokens: int
    num_farther: float
    variance: float

    @classmethod
    def of(cls, errors: LogprobErrors) -> _Bias:
        count, error = errors.num_tokens, errors.standard_error
        if not np.isfinite(error):  # no token, or one id only: it tells nothing
            return cls(0, 0.0, 0.0)
        return cls(count, errors.engine_farther * count, (error * count) ** 2)

    @classmethod
    def sum(cls, biases: Iterable[_Bias]) -> _Bias:
        rows = [(bias.num_tokens, bias.num_farther, bias.variance) for bias in biases]
        num_tokens, num_farther, variance = (sum(column) for column in zip(*rows, strict=True))
        return cls(int(num_tokens), num_farther, variance)

    @property
    def share(self) -> float:
        """Of tokens in which the engine was the worse one."""
        return self.num_farther / max(1, self.num_tokens)

    @property
    def limit(self) -> float:
        """The share that a correct engine may show."""
        return max(MAX_ENGINE_FARTHER, 0.5 + MAX_BIAS * math.sqrt(self.variance) / max(1, self.num_tokens))

    @property
    def is_one_sided(self) -> bool:
        """Whether one side, engine or trainer, was the worse one in too many tokens."""
        return max(self.share, 1.0 - self.share) > self.limit

    def describe_fault(self, place: str) -> str | None:
        """A fault if the engine was the worse one in too many tokens."""
        if self.share <= self.limit:
            return None
        return (
            f"in {place}, the engine is farther from the float32 result than the trainer in {self.share:.2f} "
            f"of {self.num_tokens} tokens (limit {self.limit:.2f}); this is not rounding"
        )


def _describe_sizes(errors: LogprobErrors) -> str:
    return (
        f"the engine is off by {errors.mean_engine:.2g} on average, the trainer by {errors.mean_trainer:.2g}"
    )


def check_parity(
    scorer: Scorer,
    steps: Sequence[Step],
    tolerance: float | None = None,
    *,
    dtype: str = "float32",
    strict: bool = True,
) -> LogprobGaps:
    """Compare the steps' `behavior_logprobs` with the scorer's; raise `ParityError` for a fault.

    With `strict=False` the gaps are returned either way.
    """
    if not steps:
        raise InputError("steps is empty: give at least one freshly sampled step")
    monitor = ParityMonitor(dtype, tolerance)
    engine = [step.behavior_logprobs for step in steps]
    for i, (step, logprobs) in enumerate(zip(steps, engine, strict=True)):
        if logprobs.size == 0 or logprobs.size != step.num_units:
            raise InputError(f"steps[{i}] has no behavior_logprobs; give steps that the engine sampled")
    trainer = scorer.score(steps)
    if [len(t) for t in trainer] != [len(e) for e in engine]:
        raise ParityError(
            "the trainer scored different tokens: the lengths of its logprobs differ from the engine's"
        )
    gaps = LogprobGaps.compare(
        np.concatenate(engine), np.concatenate(trainer), partial(_describe_token, steps)
    )
    if strict and (fault := monitor.judge_gaps(gaps).fault) is not None:
        raise ParityError(
            f"{gaps}; {fault}. {_diagnose_difference(steps, engine, trainer, monitor.tolerance)}"
        )
    return gaps


def _describe_token(steps: Sequence[Step], index: int) -> str:
    step, token = step_and_token(index, [step.num_units for step in steps])
    return f"step {step}, token {token} of {steps[step].num_units}"


def _diagnose_difference(
    steps: Sequence[Step], engine: list[FloatArray], trainer: list[FloatArray], tolerance: float
) -> str:
    """Name the most likely cause of the difference."""
    gaps = [np.abs(t - e) for t, e in zip(trainer, engine, strict=True)]
    flat = np.concatenate(gaps)
    if not np.isfinite(flat).all():
        return "Some logprobs are not finite: the weights of trainer or engine are broken."
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
        return "Few tokens differ: lower precision on one side, or a stale cache in the engine."
    return "Most tokens differ: the two have different weights; compare fingerprints and versions."
