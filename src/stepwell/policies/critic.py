"""Critics: what a state is worth, read off hidden states.

A *shared* critic is a value head on the actor's last hidden states: one forward pass
serves both, and both train the backbone. An *own* critic has a backbone of its own, a copy
of the actor's at the start, and the two never touch.

The head computes in float32 at least, whatever the backbone's dtype.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

CriticKind = Literal["shared", "own"]
INITIAL_VALUE_SCALE = 0.1
"""Spread of a fresh head's values: small beside rewards, but not a flat zero without gradient."""


class ValueHead(nn.Module):
    """One linear map from a hidden state to a value. A fresh head is the same every time."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        draw = torch.randn(hidden_size, generator=torch.Generator().manual_seed(0), dtype=wide)
        self.weight = nn.Parameter(draw * (INITIAL_VALUE_SCALE / hidden_size**0.5))
        self.bias = nn.Parameter(torch.zeros((), dtype=wide))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] to [...]."""
        return hidden.to(self.weight.dtype) @ self.weight + self.bias


class CriticModel(nn.Module):
    """A value head, and the backbone it reads if that is its own."""

    def __init__(self, head: ValueHead, backbone: Any | None) -> None:
        super().__init__()
        self.head = head
        self.backbone: Any | None = backbone

    @property
    def kind(self) -> CriticKind:
        return "shared" if self.backbone is None else "own"
