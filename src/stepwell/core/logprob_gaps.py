"""Differences between two sets of logprobs of the same tokens, such as the engine's and the trainer's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.core.arrays import FloatArray, IntArray

TAIL_SHARE = 1e-3
"""Share of the worst tokens that typical figures leave out; at least one token."""
LEAST_ERROR = 1e-4
"""Smaller errors carry no information: such tokens are certain."""


@dataclass(frozen=True, slots=True, eq=False)
class LogprobGaps:
    """Absolute differences of logprobs, one per token, and the token with the largest one.

    In bfloat16 single tokens can differ a hundred times as much as the average token. The typical
    figures leave out the worst thousandth of the tokens, so that one outlier does not move them.

    Invariant: a difference that is not a number counts as infinite.
    """

    values: FloatArray  # ascending
    worst: str
    engine_logprob: float
    trainer_logprob: float

    @classmethod
    def compare(cls, engine: FloatArray, trainer: FloatArray, name: Callable[[int], str]) -> LogprobGaps:
        """Compare two flat arrays of at least one token; `name` turns an index into the token's place."""
        gaps = np.abs(trainer.astype(np.float64) - engine)
        gaps[np.isnan(gaps)] = np.inf  # equal infinities differ by NaN too
        worst = int(gaps.argmax())
        return cls(
            values=np.sort(gaps),
            worst=name(worst),
            engine_logprob=float(engine[worst]),
            trainer_logprob=float(trainer[worst]),
        )

    @property
    def num_tokens(self) -> int:
        return len(self.values)

    @property
    def max_abs(self) -> float:
        return float(self.values[-1])

    @property
    def mean_abs(self) -> float:
        return float(self.values.mean())

    @property
    def typical_mean(self) -> float:
        """The mean without the worst thousandth of the tokens (at least one token)."""
        typical = self._drop_tail()
        return float(typical.mean()) if len(typical) else self.max_abs

    def compute_typical_quantile(self, share: float) -> float:
        """The quantile without the worst thousandth of the tokens (at least one token)."""
        typical = self._drop_tail()
        return float(np.quantile(typical, share)) if len(typical) else self.max_abs

    def count_beyond(self, limit: float) -> int:
        """The number of tokens that differ by more than `limit`."""
        return self.num_tokens - int(np.searchsorted(self.values, limit, side="right"))

    def _drop_tail(self) -> FloatArray:
        return self.values[: self.num_tokens - max(1, int(TAIL_SHARE * self.num_tokens))]

    def __str__(self) -> str:
        return (
            f"logprobs differ by {self.mean_abs:.3g} on average and {self.max_abs:.3g} at most, over "
            f"{self.num_tokens} tokens (worst: {self.worst}, engine {self.engine_logprob:.3f}, "
            f"trainer {self.trainer_logprob:.3f})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class LogprobErrors:
    """Errors of engine and trainer against the true logprobs of the same tokens.

    In 16 bits both have rounding errors. A token with a large error on one side has a large one on the
    other, and each side is the closer one for about half of the tokens. A faulty engine is farther off
    for more of them.

    The same word rounds to the same side wherever it stands, as long as the weights stay: its tokens err
    together. A policy that is sure of itself writes few words, so that the share of one update may lie far
    from one half by rounding alone. The standard error therefore counts by distinct words, not by tokens.

    Invariant: one entry per distinct token in its context (siblings repeat each other's), and only if
    one of the two errors is larger than `LEAST_ERROR`.
    """

    engine: FloatArray
    trainer: FloatArray
    token_ids: IntArray

    @classmethod
    def against(
        cls, truth: FloatArray, *, engine: FloatArray, trainer: FloatArray, token_ids: IntArray
    ) -> LogprobErrors:
        """Compare flat arrays, one logprob per token."""
        _, first = np.unique(truth, return_index=True)  # equal to the last bit: the same token and context
        engine, trainer = (
            np.abs(side[first].astype(np.float64) - truth[first]) for side in (engine, trainer)
        )
        matters = np.maximum(engine, trainer) > LEAST_ERROR
        return cls(engine[matters], trainer[matters], token_ids[first][matters])

    @property
    def num_tokens(self) -> int:
        return len(self.engine)

    @property
    def mean_engine(self) -> float:
        """The engine's mean error."""
        return float(self.engine.mean()) if self.num_tokens else 0.0

    @property
    def mean_trainer(self) -> float:
        """The trainer's mean error."""
        return float(self.trainer.mean()) if self.num_tokens else 0.0

    @property
    def engine_farther(self) -> float:
        """Share of tokens for which the engine is farther from the truth than the trainer; ties are half."""
        return float(self._compare_sides().mean()) if self.num_tokens else 0.5

    @property
    def standard_error(self) -> float:
        """Of `engine_farther`, where tokens of one id err together; infinite if there is one id only."""
        if not self.num_tokens:
            return float("inf")
        farther = self._compare_sides()
        _, groups, counts = np.unique(self.token_ids, return_inverse=True, return_counts=True)
        sums = np.bincount(groups, weights=farther - farther.mean())
        num_ids = float(self.num_tokens**2 / (counts**2).sum())  # as many as if all were equally frequent
        if num_ids <= 1.0:
            return float("inf")
        by_ids = float(np.sqrt((sums**2).sum() * num_ids / (num_ids - 1.0))) / self.num_tokens
        return max(by_ids, float(0.5 / self.num_tokens**0.5))

    @property
    def engine_bias(self) -> float:
        """How far `engine_farther` is above one half, in standard errors."""
        return (self.engine_farther - 0.5) / self.standard_error

    def _compare_sides(self) -> FloatArray:
        sides: FloatArray = (self.engine > self.trainer) + 0.5 * (self.engine == self.trainer)
        return sides


MeasureErrors = Callable[[float], LogprobErrors | None]
"""Measures errors on a share of an update's steps; None if memory is too small for the truth."""


def step_and_token(index: int, lengths: Sequence[int]) -> tuple[int, int]:
    """The step that a flat token index falls into, given the steps' lengths, and the index within it."""
    ends = np.cumsum(lengths)
    step = int(np.searchsorted(ends, index, side="right"))
    return step, index - int(ends[step]) + lengths[step]
