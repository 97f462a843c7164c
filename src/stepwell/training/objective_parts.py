"""A part of a minibatch as an objective sees it: some of its steps, or all of them.

A part selects from what is known of the whole minibatch, and counts with the whole minibatch's counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepwell.algos import Timeline
from stepwell.algos.losses.reduction import MinibatchCounts


@dataclass(frozen=True, eq=False)
class ValueSites:
    """Where the critic is taught: [site, 2] (step, position), its targets, and its values before."""

    sites: Tensor
    targets: Tensor
    before: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def keep_sites(self, chosen: Tensor) -> ValueSites:
        """The chosen ones; [site] bool."""
        return ValueSites(self.sites[chosen], self.targets[chosen], self.before[chosen])


@dataclass(frozen=True, eq=False)
class ObjectivePart:
    """Steps of a minibatch. `steps`, `tokens` and `trajectories` are their places in it; None: all."""

    timeline: Timeline
    steps: Tensor | None = None
    tokens: Tensor | None = None
    trajectories: Tensor | None = None

    @classmethod
    def take(cls, whole: Timeline, steps: Tensor) -> ObjectivePart:
        """The part made of `steps` (flat, ascending)."""
        chosen = torch.zeros_like(whole.tokens_per_step, dtype=torch.bool).index_fill(0, steps, True)
        tokens = whole.steps_to_tokens(chosen).nonzero()[:, 0]
        trajectories = torch.unique_consecutive(whole.steps_by_trajectory.index[steps])
        return cls(whole.take_steps(steps), steps, tokens, trajectories)

    def select_tokens(self, values: Tensor | None) -> Tensor | None:
        """The part's elements of [token]."""
        return values if values is None or self.tokens is None else values[self.tokens]

    def count_with(self, count_whole: Callable[[], MinibatchCounts]) -> MinibatchCounts | None:
        """The counts of the whole minibatch for this part; None if it is the whole, which counts itself."""
        return None if self.trajectories is None else replace(count_whole(), trajectories=self.trajectories)

    def select_sites(self, sites: ValueSites) -> ValueSites:
        """The part's sites, with its own numbers of steps."""
        if self.steps is None:
            return sites
        place = torch.searchsorted(self.steps, sites.sites[:, 0].contiguous())
        place = place.clamp(max=len(self.steps) - 1)
        chosen = sites.keep_sites(self.steps[place] == sites.sites[:, 0])
        own = torch.searchsorted(self.steps, chosen.sites[:, 0].contiguous())
        return replace(chosen, sites=torch.stack([own, chosen.sites[:, 1]], 1))


def selects_nothing(mask: Tensor | None) -> bool:
    """Whether a [token] mask leaves nothing; None selects everything."""
    return mask is not None and not bool(mask.any())
