"""Actions as bins: every dimension of [-1, 1] cut into equal parts, drawn by inverse CDF."""

from __future__ import annotations

import torch
from torch import Tensor


def find_bin(actions: Tensor, bins: int) -> Tensor:
    """The bin that each number in [-1, 1] lies in; what lies outside goes to the nearest.

    >>> bin_of(torch.tensor([-1.0, -0.4, 0.0, 1.0, 3.0]), 4).tolist()
    [0, 1, 2, 3, 3]
    """
    return ((actions + 1.0) * (bins / 2.0)).floor().clamp(0, bins - 1).long()


def find_bin_centre(places: Tensor, bins: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The middle of each bin."""
    return (places.to(dtype) + 0.5) * (2.0 / bins) - 1.0


def draw_bins(logits: Tensor, uniforms: Tensor, temperatures: Tensor) -> Tensor:
    """One bin per row of `logits` [B, ..., bins]; temperature 0 takes the likeliest."""
    shape = (-1,) + (1,) * (logits.ndim - 1)
    is_greedy = (temperatures <= 0).view(shape)
    scaled = logits / torch.where(is_greedy, 1.0, temperatures.view(shape))
    rising = scaled.double().softmax(dim=-1).cumsum(dim=-1)
    below = (rising < uniforms.unsqueeze(-1) * rising[..., -1:]).sum(dim=-1)
    return torch.where(is_greedy.squeeze(-1), logits.argmax(dim=-1), below.clamp(max=logits.shape[-1] - 1))


def logprobs(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Of every bin, at positive temperatures [B]."""
    return (logits / temperatures.view((-1,) + (1,) * (logits.ndim - 1))).log_softmax(dim=-1)


def gather_logprobs(logprobs: Tensor, places: Tensor) -> Tensor:
    """The logprob of each bin taken."""
    return logprobs.gather(-1, places.unsqueeze(-1)).squeeze(-1)


def entropies(logprobs: Tensor) -> Tensor:
    """Of each dimension."""
    return -(logprobs.exp() * logprobs).sum(dim=-1)
