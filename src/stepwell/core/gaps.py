"""How far the engine that sampled some tokens and the trainer are apart about their logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.core.arrays import FloatArray

_MEAN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Gaps:
    """The differences of some logprobs, and the token at which they are largest.

    An unlikely token that differs points to rounding; a likely one to a fault that touches few tokens.
    """

    num_tokens: int
    max_abs: float
    mean_abs: float
    worst: str
    engine_logprob: float
    trainer_logprob: float

    @classmethod
    def between(
        cls, engine: Sequence[FloatArray], trainer: Sequence[FloatArray], names: Sequence[str]
    ) -> Gaps:
        """Of at least one step; `names` says which step each array is of."""
        gaps = [np.abs(t.astype(np.float64) - e) for t, e in zip(trainer, engine, strict=True)]
        gaps = [np.where(np.isnan(gap), np.inf, gap) for gap in gaps]  # equal infinities differ by NaN too
        flat = np.concatenate(gaps)
        step = max(range(len(gaps)), key=lambda i: gaps[i].max())
        token = int(gaps[step].argmax())
        return cls(
            num_tokens=len(flat),
            max_abs=float(flat.max()),
            mean_abs=float(flat.mean()),
            worst=f"{names[step]}, token {token} of {len(gaps[step])}",
            engine_logprob=float(engine[step][token]),
            trainer_logprob=float(trainer[step][token]),
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
