"""Weights as bytes: tensors of any dtype, numpy arrays too, by name, without pickle.

A tensor is sent as its raw bytes with the name of its dtype (numpy has no bfloat16) and its shape.
`PackedWeights` go to several generators: they are packed and copied once, and a transport may keep what it
made of them (Ray: one object, which every node fetches once).
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stepwell.core import EncodingError, InputError
from stepwell.core.arrays import AnyArray

Header = dict[str, Any]


class SharedArrays(list[AnyArray]):
    """Arrays that several workers get and nobody changes. `handle` belongs to the transport."""

    handle: Any = None


class PackedWeights(Mapping[str, Any]):
    """Named weights for several generators."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights
        self._packed: tuple[Header, SharedArrays] | None = None
        self._lock = threading.Lock()

    def pack_once(self) -> tuple[Header, SharedArrays]:
        """Header and bytes; the first call makes them, in any thread."""
        with self._lock:
            if self._packed is None:
                header, arrays = pack_weights(self._weights)
                self._packed = header, copy_arrays(arrays)
            return self._packed

    def __getitem__(self, name: str) -> Any:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def copy_arrays(arrays: Sequence[AnyArray]) -> SharedArrays:
    """Arrays that nobody else changes: copies, unless they are shared already."""
    return arrays if isinstance(arrays, SharedArrays) else SharedArrays(map(np.array, arrays))


def pack_weights(weights: Mapping[str, Any]) -> tuple[Header, list[AnyArray]]:
    """Named tensors or arrays as header and bytes. Those in CPU memory are not copied."""
    if isinstance(weights, PackedWeights):
        return weights.pack_once()
    import torch

    named, raw = [], []
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor | np.ndarray):
            raise InputError(f"weights[{name!r}] is a {type(value).__name__}; give tensors or arrays")
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        named.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        raw.append(tensor.reshape(-1).view(torch.uint8).numpy())
    return {"weights": named}, raw


def unpack_weights(header: Header, arrays: Sequence[AnyArray]) -> dict[str, Any]:
    """The tensors of `pack_weights`, on the CPU. They share the frame's memory."""
    try:
        named = header["weights"]
        if len(named) != len(arrays):
            raise EncodingError(f"{len(arrays)} arrays for {len(named)} weights")
        return {
            name: build_tensor(kind, shape, raw)
            for (name, kind, shape), raw in zip(named, arrays, strict=True)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise EncodingError(f"the frame does not hold the weights it should: {error!r}") from error


def build_tensor(kind: str, shape: Sequence[int], raw: AnyArray) -> Any:
    import torch

    dtype = getattr(torch, kind, None)
    if not isinstance(dtype, torch.dtype) or raw.dtype != np.uint8 or raw.ndim != 1:
        raise EncodingError(f"weights of dtype {kind!r}")
    if raw.size != math.prod(shape) * dtype.itemsize:
        raise EncodingError(f"{raw.size} bytes for a tensor of {kind} {list(shape)}")
    if not raw.size:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        return torch.from_numpy(raw).view(dtype).reshape(tuple(shape))
