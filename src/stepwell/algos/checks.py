"""Checks of tensors: type, length, dtype, device, finite values (numbers and names: `scalar_checks.py`).

Every public function of `algos` checks its inputs before it computes. It refuses them with an `InputError`
whose message starts with the field's name and ends with what to do. Nothing is broadcast, padded or cut to
make sizes agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.errors import InputError

FLOATS = (torch.float32, torch.float64)


def check_floats(
    name: str, value: object, length: int | None, per: str, device: torch.device | None = None
) -> Tensor:
    """`value` is a finite float32/float64 tensor of shape [length] (any length if None)."""
    tensor = _check_vector(name, value, length, per, device)
    if tensor.dtype not in FLOATS:
        raise InputError(
            f"{name}: dtype {tensor.dtype} is not accepted; convert it with .float() or .double()"
        )
    if not bool(torch.isfinite(tensor).all()):
        where = int(torch.nonzero(~torch.isfinite(tensor))[0])
        raise InputError(
            f"{name}: holds {tensor[where].item()} at position {where}; every {per} needs a finite number"
        )
    return tensor


def check_integers(
    name: str, value: object, length: int | None, per: str, device: torch.device | None = None
) -> Tensor:
    """`value` is an int64 tensor of shape [length] (any length if None)."""
    tensor = _check_vector(name, value, length, per, device)
    if tensor.dtype != torch.int64:
        raise InputError(f"{name}: dtype {tensor.dtype} is not accepted; convert it with .long()")
    return tensor


def check_mask(name: str, value: object, length: int, per: str, device: torch.device | None = None) -> Tensor:
    """`value` is a boolean tensor of shape [length]."""
    tensor = _check_vector(name, value, length, per, device)
    if tensor.dtype != torch.bool:
        raise InputError(
            f"{name}: dtype {tensor.dtype} is not a mask; convert it with .bool() (True = trained)"
        )
    return tensor


def _check_vector(
    name: str, value: object, length: int | None, per: str, device: torch.device | None
) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(
            f"{name}: expected a tensor, got {type(value).__name__}; wrap it with torch.tensor(...), "
            "or build the timeline with Timeline.from_lists"
        )
    expected = "[n]" if length is None else f"[{length}]"
    if value.ndim != 1 or (length is not None and value.shape[0] != length):
        raise InputError(f"{name}: shape {list(value.shape)}, expected {expected} (one per {per}, flat)")
    if device is not None and value.device != device:
        raise InputError(f"{name}: lives on {value.device} but the rest is on {device}; move it with .to()")
    return value
