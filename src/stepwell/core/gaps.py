"""How far the engine that sampled some tokens and the trainer are apart about their logprobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.core.arrays import FloatArray

_MEAN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Gaps:
    """The differences of some logprobs, and the token at which they are largest.

    In bfloat16 single tokens differ much more than the average does, likely ones too:
    `benchmarks/parity_gaps.py` tells rounding from a fault.
    """

    num_tokens: int
    max_abs: float
    mean_abs: float
    worst: str
    engine_logprob: float
    trainer_logprob: float

    @classmethod
    def between(cls, engine: FloatArray, trainer: FloatArray, name: Callable[[int], str]) -> Gaps:
        """Of at least one token, flat; `name` says of an index which token it is."""
        gaps = np.abs(trainer.astype(np.float64) - engine)
        gaps[np.isnan(gaps)] = np.inf  # equal infinities differ by NaN too
        worst = int(gaps.argmax())
        return cls(
            num_tokens=len(gaps),
            max_abs=float(gaps[worst]),
            mean_abs=float(gaps.mean()),
            worst=name(worst),
            engine_logprob=float(engine[worst]),
            trainer_logprob=float(trainer[worst]),
        )

    def within(self, tolerance: float) -> bool:
        """Whether both can be of the same weights: so near at the worst token, a tenth of it on average."""
        return self.max_abs <= tolerance and self.mean_abs <= _MEAN_SHARE * tolerance

    def __str__(self) -> str:
        return (
            f"logprobs differ by {self.max_abs:.3g} at most, {self.mean_abs:.3g} on average, over "
            f"{self.num_tokens} tokens (worst: {self.worst}, engine {self.engine_logprob:.3f}, "
            f"trainer {self.trainer_logprob:.3f})"
        )


def step_and_token(index: int, lengths: Sequence[int]) -> tuple[int, int]:
    """Which of steps of such lengths a flat index falls into, and where in it."""
    ends = np.cumsum(lengths)
    step = int(np.searchsorted(ends, index, side="right"))
    return step, index - int(ends[step]) + lengths[step]
