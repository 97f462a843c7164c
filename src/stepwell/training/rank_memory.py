"""Weights in memory that a trainer and its first rank share: both map one file, and nothing travels.

A file in the machine's memory (`/dev/shm`) is laid out by the names, types and shapes of the weights, which
both sides know. The rank writes the whole weights into it, the trainer reads them there. Where there is no
such place, or not enough room in it, weights travel over the socket (`rank_link.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PLACE = Path("/dev/shm")
_ALIGNED = 64
_ROOM = 2  # times what is needed: others use the place too
Layout = dict[str, tuple[torch.dtype, torch.Size]]


def describe_layout(named: Iterable[tuple[str, Tensor]]) -> Layout:
    """Types and shapes by name, in order."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in named}


def has_room(layout: Layout) -> bool:
    """Whether the machine's memory has a place for these weights."""
    return PLACE.is_dir() and shutil.disk_usage(PLACE).free >= _ROOM * _count_bytes(layout)


def map_weights(file: Path, layout: Layout) -> dict[str, Tensor]:
    """The weights in a file, which is made if it is not there. Writing to them writes to the file."""
    whole = torch.from_file(str(file), shared=True, size=_count_bytes(layout), dtype=torch.uint8)
    views, start = {}, 0
    for name, (dtype, shape) in layout.items():
        size = shape.numel() * dtype.itemsize
        views[name] = whole[start : start + size].view(dtype).view(shape)
        start += _round_up(size)
    return views


def lock_pages(weights: dict[str, Tensor]) -> None:
    """Let a GPU write to mapped weights at its full speed; where the system refuses, it is slower."""
    memory = next(iter(weights.values())).untyped_storage()
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes(), 0)):
        with suppress(RuntimeError):  # CUDA reports a refusal once more, at the next kernel
            torch.ones(1, device="cuda")


def _count_bytes(layout: Layout) -> int:
    return sum(_round_up(shape.numel() * dtype.itemsize) for dtype, shape in layout.values())


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
