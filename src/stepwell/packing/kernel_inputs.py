"""How attention computes scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Options for computing scores from queries and keys.

    With a `window` of w, a token sees the w nearest tokens of its path, including itself. A `softcap` of c
    turns a score s into c * tanh(s / c).
    """

    scaling: float
    window: int | None
    softcap: float | None
