"""Whitening: advantages shifted and scaled to mean 0 and standard deviation 1."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.checks import check_floats, check_mask
from stepwell.algos.scalar_checks import check_positive
from stepwell.core.errors import InputError


@torch.no_grad()
def whiten(x: Tensor, mask: Tensor | None = None, *, eps: float = 1e-8) -> Tensor:
    """(x - mean) / (std + eps) with the population standard deviation.

    Under a `mask`, mean and deviation are those of the True entries and the others become 0. Equal entries
    give exactly 0. They are shifted to 0 before the mean is taken, because the rounding error of a mean is
    as large as `eps`.
    """
    check_positive("eps", eps)
    check_floats("x", x, None, "entry")
    if mask is not None:
        check_mask("mask", mask, len(x), "entry", x.device)
        out = torch.zeros_like(x)
        out[mask] = whiten(x[mask], eps=eps)
        return out
    if len(x) == 0:
        raise InputError("x: nothing to whiten; the batch or the mask is empty")
    shifted = x - x[0]
    centred = shifted - shifted.mean()
    return centred / (centred.square().mean().sqrt() + eps)
