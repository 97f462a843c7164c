"""Splits an update's trajectories into minibatches, and demonstrations into batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.config.training import WarmStartConfig
from stepwell.core import Trajectory


def count_batches(config: WarmStartConfig, num_demos: int) -> int:
    """Count the updates of a warm start from this many demonstrations."""
    per_epoch = -(-num_demos // config.batch_size)
    planned = per_epoch * config.epochs
    return planned if config.max_updates is None else min(planned, config.max_updates)


def split_trajectories(
    trajectories: Sequence[Trajectory], count: int, rng: np.random.Generator | None = None
) -> list[list[Trajectory]]:
    """Split into at most `count` parts with about equal numbers of trajectories, groups kept whole.

    Trajectories come in the order in which they ended: short ones, which mostly succeeded, first. A part with
    only these would have nothing to compare, so `rng` shuffles the groups; None leaves them in order.
    """
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group or trajectory.id, []).append(trajectory)
    order = list(groups.values())
    if rng is not None and count > 1:
        order = [order[place] for place in rng.permutation(len(order))]
    parts: list[list[Trajectory]] = [[]]
    done = 0
    for group in order:
        if parts[-1] and done * count >= len(parts) * len(trajectories) and len(parts) < count:
            parts.append([])
        parts[-1] += group
        done += len(group)
    return [part for part in parts if part]
