"""Arrays of the host as tensors of a device, without waiting for the device.

A plain copy to a GPU waits until everything before it has run. Between two microbatches the GPU would then be
idle while the host prepares the next one. A copy from pinned memory joins the GPU's queue instead, and torch
keeps that memory until the copy is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def copy_to_device(array: Any, device: torch.device, dtype: Any = None) -> Tensor:
    """An array as a tensor on `device`, with its own dtype or the given one of numpy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class NumberTable:
    """Integer arrays of fixed lengths in one piece of a device's memory, replaced in one copy.

    Captured passes read it at a fixed address. Every array begins at a multiple of 16 bytes.
    """

    def __init__(self, lengths: dict[str, int], device: torch.device, dtype: torch.dtype) -> None:
        at = 0
        self._parts: dict[str, slice] = {}
        for name, length in lengths.items():
            self._parts[name] = slice(at, at + length)
            at += -(-length // 4) * 4
        self._numbers = torch.zeros(at, dtype=dtype, device=device)

    def __getitem__(self, name: str) -> Tensor:
        return self._numbers[self._parts[name]]

    def fill(self, arrays: dict[str, Any]) -> None:
        """Replace all arrays. A shorter one is continued with its last number."""
        is_cuda = self._numbers.is_cuda
        made = torch.empty(self._numbers.shape, dtype=self._numbers.dtype, pin_memory=is_cuda)
        numbers = made.numpy()
        for name, array in arrays.items():
            part = numbers[self._parts[name]]
            part[: len(array)] = array
            part[len(array) :] = array[-1] if len(array) else 0
        self._numbers.copy_(made, non_blocking=is_cuda)
