"""How well a policy knows an action, and which known steps are worth learning from again.

    perplexity of a step = exp(−mean logprob of its action tokens)       1: certain, 2: even chances

Steps with a low perplexity teach nothing; steps with a high one would pull the policy far away. Replay takes
the band between.

Invariants of `choose_steps`
* Every chosen step lies in the band, and every chosen trajectory has at least one.
* So many steps are chosen as the band holds, or `max_steps` if these are fewer.
* Trajectories are drawn evenly; all steps of a drawn trajectory that lie in the band are taken, of the last
  one an even draw of as many as still fit.
* The choice is a pure function of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.core.arrays import FloatArray

HISTOGRAM_EDGES = (1.0, 1 / 0.95, 1 / 0.9, 1 / 0.75, 1 / 0.5, 1 / 0.25)
"""Lower ends of the bins of a histogram; the last bin has no upper end."""


@dataclass(frozen=True, slots=True)
class PerplexityBand:
    """A range of perplexities, both ends included."""

    low: float
    high: float = math.inf

    def contains(self, perplexity: float) -> bool:
        return self.low <= perplexity <= self.high


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A stored trajectory and the perplexity of each of its steps."""

    id: str
    perplexities: tuple[float, ...]


def compute_perplexity(logprobs: FloatArray) -> float:
    """Perplexity of an action, from the logprobs of its tokens; infinite beyond what a float can hold."""
    with np.errstate(over="ignore"):
        return float(np.exp(-np.mean(logprobs, dtype=np.float64)))


def choose_steps(
    scored: Sequence[ScoredTrajectory], band: PerplexityBand, max_steps: int, rng: np.random.Generator
) -> dict[str, tuple[bool, ...]]:
    """The steps to learn from: one bool per step by trajectory id, in the order of the draw."""
    masks = [tuple(band.contains(value) for value in each.perplexities) for each in scored]
    eligible = [i for i, mask in enumerate(masks) if any(mask)]
    chosen: dict[str, tuple[bool, ...]] = {}
    left = max_steps
    for place in rng.permutation(len(eligible)):
        if left <= 0:
            break
        index = eligible[int(place)]
        mask = _thin_mask(masks[index], left, rng)
        chosen[scored[index].id] = mask
        left -= sum(mask)
    return chosen


def count_perplexities(values: Sequence[float]) -> list[int]:
    """How many values lie in each bin of `HISTOGRAM_EDGES`."""
    places = np.searchsorted(HISTOGRAM_EDGES, np.asarray(values, dtype=np.float64), side="right") - 1
    return [int(n) for n in np.bincount(np.maximum(places, 0), minlength=len(HISTOGRAM_EDGES))]


def _thin_mask(mask: tuple[bool, ...], max_steps: int, rng: np.random.Generator) -> tuple[bool, ...]:
    places = [i for i, flag in enumerate(mask) if flag]
    if len(places) <= max_steps:
        return mask
    kept = {places[int(i)] for i in rng.permutation(len(places))[:max_steps]}
    return tuple(i in kept for i in range(len(mask)))
