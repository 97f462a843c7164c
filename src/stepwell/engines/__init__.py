"""Engines that sample actions: embedded, for robot policies, at servers (vLLM, SGLang). And the batcher.

Names are imported on first use: the batcher, streams and remote engines work without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.engines.array_engine import ArrayEngine
    from stepwell.engines.batcher import BatchQueue, DynamicBatcher
    from stepwell.engines.embedded import EmbeddedEngine
    from stepwell.engines.parity import check_parity
    from stepwell.engines.remote import RemoteEngine
    from stepwell.engines.served.engine import ServedEngine
    from stepwell.engines.token_stream import SampledToken, Streamer
    from stepwell.engines.weights import fingerprint_of

__all__ = [
    "ArrayEngine",
    "BatchQueue",
    "DynamicBatcher",
    "EmbeddedEngine",
    "RemoteEngine",
    "SampledToken",
    "ServedEngine",
    "Streamer",
    "check_parity",
    "fingerprint_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ArrayEngine": "array_engine",
        "BatchQueue": "batcher",
        "DynamicBatcher": "batcher",
        "EmbeddedEngine": "embedded",
        "RemoteEngine": "remote",
        "SampledToken": "token_stream",
        "ServedEngine": "served.engine",
        "Streamer": "token_stream",
        "check_parity": "parity",
        "fingerprint_of": "weights",
    },
)
