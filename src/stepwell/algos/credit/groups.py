"""Comparison of numbers within groups whose members are scattered over the batch.

A group is a set of equal labels: siblings on one task, or steps that saw the same observation. A stable sort
brings members together, so every reduction is one of `Segments` and repeats exactly. Each group is shifted so
that its first member is 0 before its mean is taken: a group of one, or of equal numbers, gives exactly 0
without a special case.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.algos.segments import Segments


def subtract_group_mean(
    x: Tensor, labels: Tensor, *, normalize_std: bool = False, eps: float = 0.0
) -> Tensor:
    """x − mean of its group, divided by (sample std of its group + eps) when asked."""

    def compare(shifted: Tensor, groups: Segments) -> Tensor:
        centred = shifted - groups.expand(groups.mean(shifted))
        if not normalize_std:
            return centred
        degrees = (groups.lengths - 1).clamp(min=1)
        std = (groups.sum(centred.square()) / degrees).sqrt()
        return centred / (groups.expand(std) + eps)

    return _compare_in_groups(x, labels, compare)


def subtract_mean_of_others(x: Tensor, labels: Tensor) -> Tensor:
    """x − mean of the other members of its group; 0 for a group of one."""

    def compare(shifted: Tensor, groups: Segments) -> Tensor:
        num_others = groups.expand((groups.lengths - 1).clamp(min=1))
        others = groups.expand(groups.sum(shifted)) - shifted
        return shifted - others / num_others

    return _compare_in_groups(x, labels, compare)


def _compare_in_groups(x: Tensor, labels: Tensor, compare: Callable[[Tensor, Segments], Tensor]) -> Tensor:
    order = labels.argsort(stable=True)
    _, lengths = torch.unique_consecutive(labels[order], return_counts=True)
    groups = Segments(lengths, x.shape[0])
    members = x[order]
    shifted = members - groups.expand(members[groups.first])
    return torch.empty_like(x).index_copy(0, order, compare(shifted, groups))
