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
