"""Inputs of the attention kernels: scoring options, and the keys of a group of runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
class RunKeys:
    """Keys and values of shared ancestors [key heads, depth, D], and of the runs [key heads, runs, length,
    D]."""

    above_keys: Tensor
    own_keys: Tensor
    above_values: Tensor
    own_values: Tensor
