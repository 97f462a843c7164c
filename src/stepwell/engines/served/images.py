"""Images of prompts for inference servers: arrays as the trainer's encoder reads them, by hash.

    ImageStore ─► ImageFormat.build_arrays ─► encode_arrays ─► what a server takes, with places and hashes

Equal hashes share keys and features in a server's caches, so the hash is that of the pixels.
Only families fit whose images are one run of placeholders without tags (`FAMILIES`).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.core.images import ImageStore
from stepwell.core.step import TokenState
from stepwell.rendering.vision import ImageFormat

if TYPE_CHECKING:
    import torch

FAMILIES = ("llava", "qwen_vl")
"""Families of `rendering.vision` whose images can be sent."""
_NUM_ENCODED = 64
_MAX_MB = 64.0
_GRID = "image_grid_thw"
_TOWER, _INNER = "vision_tower.", "vision_model."


def refuse_images(backend: str, image_format: ImageFormat) -> str | None:
    """Why servers of this kind cannot be given this model's images; None if they can."""
    if backend != "vllm":
        return f"{backend} gets prompts as token ids, without images (docs/servers.md)"
    if image_format.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        return f"vllm gets images of {known} models, not of {image_format.family} (docs/servers.md)"
    return None


class ServedImages:
    """The images of a run, as vLLM takes them. `image_store` is the run's; `add` stores nothing there."""

    def __init__(self, image_format: ImageFormat, image_store: ImageStore) -> None:
        self.image_format = image_format
        self._added = ImageStore()
        self._run_store = image_store
        self.store = ImageStore(self._load, max_mb=_MAX_MB)
        self._encode = lru_cache(_NUM_ENCODED)(self._encode_image)

    def add(self, image: AnyArray) -> str:
        """Add an image that is none of the run's, and return its name."""
        return self._added.add(image)

    def build_features(self, state: TokenState) -> dict[str, Any]:
        """The images of a prompt, whose ids must be the model's own."""
        spans = [placed.span for placed in self.image_format.place_images(state, self.store)]
        return {
            "mm_hashes": {"image": [span.image for span in spans]},
            "mm_placeholders": {"image": [{"offset": span.start, "length": span.length} for span in spans]},
            "kwargs_data": {"image": [self._encode(span.image) for span in spans]},
        }

    def _load(self, name: str) -> AnyArray:
        return (self._added if name in self._added else self._run_store).get(name)

    def _encode_image(self, name: str) -> str:
        return encode_arrays(self.image_format.build_arrays(self.store.get(name)))


def drop_images(state: TokenState) -> TokenState:
    """The prompt without its images' tokens."""
    runs = [np.arange(span.start, span.start + span.length) for span in state.images]
    return TokenState(np.delete(state.prompt_ids, np.concatenate(runs))) if runs else state


def rename_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights under the names of published LLaVA checkpoints, which vLLM reads.

    >>> import torch
    >>> list(rename_weights({"model.vision_tower.encoder.x": torch.zeros(1)}))
    ['model.vision_tower.vision_model.encoder.x']
    """
    return {_rename_weight(name): tensor for name, tensor in weights.items()}


def _rename_weight(name: str) -> str:
    before, tower, after = name.partition(_TOWER)
    inner = _INNER if tower and not after.startswith(_INNER) else ""
    return f"{before}{tower}{inner}{after}"


def encode_arrays(arrays: Mapping[str, AnyArray]) -> str:
    """One image's arrays as vLLM reads them: msgpack in base64.

    Pixels with a grid are patches, whose first axis goes on from image to image. That of other arrays counts
    images and is left out.
    """
    item = {}
    for name, array in arrays.items():
        if name == "pixel_values" and _GRID in arrays:
            rows = [[0, len(array), None]]
            field = ["flat", {"slices": rows, "dim": 0, "keep_on_cpu": False}]
        else:
            array, field = array[0], ["batched", {"keep_on_cpu": name == _GRID}]
        item[name] = {"data": [str(array.dtype), list(array.shape), array], "field": field}
    return base64.b64encode(_pack(item)).decode()


def _pack(value: Any) -> bytes:
    """Msgpack of what an item holds; bytes of arrays are its extension 3."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return struct.pack(">Bq", 0xD3, value)
        case str():
            raw = value.encode()
            return struct.pack(">BI", 0xDB, len(raw)) + raw
        case np.ndarray():
            raw = value.tobytes()
            return struct.pack(">BIb", 0xC9, len(raw), 3) + raw
        case Mapping():
            parts = (_pack(part) for pair in value.items() for part in pair)
            return struct.pack(">BI", 0xDF, len(value)) + b"".join(parts)
        case Sequence():
            return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(_pack, value))
    raise TypeError(f"{type(value)} is no part of an item")
