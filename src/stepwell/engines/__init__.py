"""Who samples fast: the embedded engine and the dynamic batcher every engine stands behind.

Names are imported when first used: the batcher works without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.engines.batcher import BatchQueue, DynamicBatcher
    from stepwell.engines.embedded import EmbeddedEngine
    from stepwell.engines.parity import check_parity
    from stepwell.engines.streaming import SampledToken, Streamer
    from stepwell.engines.weights import fingerprint_of

__all__ = [
    "BatchQueue",
    "DynamicBatcher",
    "EmbeddedEngine",
    "SampledToken",
    "Streamer",
    "check_parity",
    "fingerprint_of",
]

_HOMES = {
    "BatchQueue": "batcher",
    "DynamicBatcher": "batcher",
    "EmbeddedEngine": "embedded",
    "SampledToken": "streaming",
    "Streamer": "streaming",
    "check_parity": "parity",
    "fingerprint_of": "weights",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
