"""Actions as bins: each dimension of [-1, 1] is cut into equal bins, which are drawn by inverse CDF."""

from __future__ import annotations

import torch
from torch import Tensor


def find_bin(actions: Tensor, bins: int) -> Tensor:
    """Return the bin of each number in [-1, 1]. Numbers outside get the nearest bin.

    >>> find_bin(torch.tensor([-1.0, -0.4, 0.0, 1.0, 3.0]), 4).tolist()
    [0, 1, 2, 3, 3]
    """
    return ((actions + 1.0) * (bins / 2.0)).floor().clamp(0, bins - 1).long()


def find_bin_centre(places: Tensor, bins: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the centre of each bin."""
    return (places.to(dtype) + 0.5) * (2.0 / bins) - 1.0


def draw_bins(logits: Tensor, uniforms: Tensor, temperatures: Tensor) -> Tensor:
    """Draw one bin per row of `logits` [B, ..., bins]. Temperature 0 takes the most likely bin."""
    shape = (-1,) + (1,) * (logits.ndim - 1)
    is_greedy = (temperatures <= 0).view(shape)
    scaled = logits / torch.where(is_greedy, 1.0, temperatures.view(shape))
    rising = scaled.double().softmax(dim=-1).cumsum(dim=-1)
    below = (rising < uniforms.unsqueeze(-1) * rising[..., -1:]).sum(dim=-1)
    return torch.where(is_greedy.squeeze(-1), logits.argmax(dim=-1), below.clamp(max=logits.shape[-1] - 1))


def logprobs(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Logprobs of all bins, at positive temperatures [B]."""
    return (logits / temperatures.view((-1,) + (1,) * (logits.ndim - 1))).log_softmax(dim=-1)


def gather_logprobs(logprobs: Tensor, places: Tensor) -> Tensor:
    """Logprobs of the bins that were drawn."""
    return logprobs.gather(-1, places.unsqueeze(-1)).squeeze(-1)


def entropies(logprobs: Tensor) -> Tensor:
    """Entropy of each dimension."""
    return -(logprobs.exp() * logprobs).sum(dim=-1)
