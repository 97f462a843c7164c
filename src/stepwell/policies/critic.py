"""Critics: state values computed from hidden states.

A *shared* critic is a value head on the actor's last hidden states: one forward pass
serves both, and both train the backbone. An *own* critic has a separate backbone, which
starts as a copy of the actor's; the two share no weights.

The head computes at least in float32, whatever the backbone's dtype.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

CriticKind = Literal["shared", "own"]
INITIAL_VALUE_SCALE = 0.1
"""Spread of the values of a new head: small compared to rewards, but not zero without a gradient."""


class ValueHead(nn.Module):
    """One linear map from a hidden state to a value. New heads always have the same weights."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        draw = torch.randn(hidden_size, generator=torch.Generator().manual_seed(0), dtype=wide)
        self.weight = nn.Parameter(draw * (INITIAL_VALUE_SCALE / hidden_size**0.5))
        self.bias = nn.Parameter(torch.zeros((), dtype=wide))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., H] to [...]."""
        return hidden.to(self.weight.dtype) @ self.weight + self.bias


class CriticModel(nn.Module):
    """A value head, and its backbone if it has its own."""

    def __init__(self, head: ValueHead, backbone: Any | None) -> None:
        super().__init__()
        self.head = head
        self.backbone: Any | None = backbone

    @property
    def kind(self) -> CriticKind:
        return "shared" if self.backbone is None else "own"
