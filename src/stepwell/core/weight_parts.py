"""Weights as parts: what a trainer publishes, before adapters are merged in.

Without adapters the parts are the weights themselves. With LoRA a weight that has an adapter is its frozen
base, and the adapter's two matrices are parts of their own. A receiver with the base needs only the adapters.
Tensors are of any kind here; this package knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank change of one weight: `scale` x `up` @ `down`, with the names of both parts."""

    down: str
    up: str
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class WeightParts:
    """Tensors by name, the adapters by the name of the weight they change, and what is never trained."""

    tensors: Mapping[str, Any]
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
