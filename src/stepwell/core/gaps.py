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
    def between(
        cls, engine: Sequence[FloatArray], trainer: Sequence[FloatArray], name: Callable[[int], str]
    ) -> Gaps:
        """Of at least one token; `name` says of an index which step its two arrays are of."""
        ends = np.cumsum([len(logprobs) for logprobs in engine])
        said, found = (np.concatenate(both).astype(np.float64) for both in (engine, trainer))
        gaps = np.abs(found - said)
        gaps[np.isnan(gaps)] = np.inf  # equal infinities differ by NaN too
        worst = int(gaps.argmax())
        step = int(np.searchsorted(ends, worst, side="right"))
        size = len(engine[step])
        return cls(
            num_tokens=len(gaps),
            max_abs=float(gaps[worst]),
            mean_abs=float(gaps.mean()),
            worst=f"{name(step)}, token {worst - int(ends[step]) + size} of {size}",
            engine_logprob=float(said[worst]),
            trainer_logprob=float(found[worst]),
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
