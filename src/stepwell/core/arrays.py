"""Checked conversion of callers' values to the arrays of a record.

Token ids are int32 and log-probabilities float32, one-dimensional and read-only. So a
record cannot change after it was made, and two records compare by value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import InputError

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]


def token_ids(values: Iterable[int] | npt.NDArray[Any], field: str) -> IntArray:
    """`values` as a read-only int32 vector of token ids; they must be integers >= 0."""
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values))
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{field} must be a flat list of integer token ids, got rank {array.ndim} of dtype {array.dtype}"
        )
    if array.size and (array.min() < 0 or array.max() > np.iinfo(np.int32).max):
        raise InputError(f"{field} holds ids outside 0..2^31-1 (lowest {array.min()}, highest {array.max()})")
    return freeze(array.astype(np.int32))


def log_probs(values: Iterable[float] | npt.NDArray[Any], field: str) -> FloatArray:
    """`values` as a read-only float32 vector of log-probabilities; NaN is refused."""
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.float32)
    if array.ndim != 1:
        raise InputError(f"{field} must be one value per action unit in a flat list, got rank {array.ndim}")
    if np.isnan(array).any():
        raise InputError(f"{field} contains NaN at position {int(np.isnan(array).argmax())}")
    return freeze(array)


def freeze(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous, read-only version of `array` that shares no memory with a writable one."""
    flags = array.flags
    if flags.writeable or not flags.c_contiguous:
        array = np.array(array, order="C", copy=True)
        array.setflags(write=False)
    return array


def equal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Equal in dtype, shape and every bit (NaN equals itself)."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def count_common_prefix(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """The number of leading elements that two vectors share."""
    size = min(a.size, b.size)
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size
