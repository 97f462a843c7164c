"""Inputs of the attention kernels: how scores are computed, and how long the arrays of a plan are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Options for computing scores from queries and keys.

    With a `window` of w, a token sees the w nearest tokens of its path, including itself. A `softcap` of c
    turns a score s into c * tanh(s / c).
    """

    scaling: float
    window: int | None
    softcap: float | None


@dataclass(frozen=True, slots=True)
class PlanSize:
    """How long the arrays are from which attention reads a tree. A captured pass has one size.

    `kind` must be equal for two trees to use the same arrays; `room` may be larger than needed.
    """

    kind: tuple[Any, ...]
    room: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return int(self.kind[0])

    def holds(self, other: PlanSize) -> bool:
        """Whether arrays of this size have room for a tree of another, over as many tokens."""
        return self.kind == other.kind and all(a >= b for a, b in zip(self.room, other.room, strict=True))
