"""Copies of nested states in host memory: what a checkpoint holds while training goes on.

    take_copy(state): {"weights": {...}, "trainer": {...}} ─► the same nest, every tensor a copy on the host

Invariants
* A copy keeps shape, strides, type and bits. Names that share a tensor share its copy.
* The memory of a copy is used again for the next one: a copy is valid until the next `take_copy`.
* Copies of tensors on a GPU are in page-locked memory, to which the GPU writes several times as fast.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_Place = tuple[Any, ...]


class HostCopy:
    """The memory for one copy of a state. It grows with what is copied, and never shrinks."""

    def __init__(self) -> None:
        self._room: dict[_Place, Tensor] = {}

    def take_copy(self, state: Any) -> Any:
        """A consistent copy; what was on its way to tensors on a GPU is waited for."""
        made: dict[tuple[Any, ...], Tensor] = {}
        copied = self._copy_nest(state, (), made)
        for device in {tensor.device for _, tensor in _list_tensors(state, ()) if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copied

    def count_new_bytes(self, state: Any) -> int:
        """Bytes that a copy of this state would allocate."""
        seen: set[tuple[Any, ...]] = set()
        total = 0
        for place, tensor in _list_tensors(state, ()):
            is_known = _identify(tensor) in seen
            seen.add(_identify(tensor))
            if is_known or self._find_room(place, tensor) is not None:
                continue
            size = tensor.numel() * tensor.element_size()
            # page-locked memory is given in powers of two
            total += 1 << (size - 1).bit_length() if tensor.is_cuda and size else size
        return total

    def release(self) -> None:
        """Give the memory back."""
        self._room.clear()

    def _copy_nest(self, state: Any, place: _Place, made: dict[tuple[Any, ...], Tensor]) -> Any:
        if isinstance(state, Tensor):
            mark = _identify(state)
            if mark not in made:
                made[mark] = self._copy_tensor(state, place)
            return made[mark]
        if isinstance(state, dict):
            return {key: self._copy_nest(value, (*place, key), made) for key, value in state.items()}
        if isinstance(state, list | tuple):
            parts = [self._copy_nest(value, (*place, i), made) for i, value in enumerate(state)]
            return tuple(parts) if isinstance(state, tuple) else parts
        return copy.deepcopy(state)

    def _copy_tensor(self, tensor: Tensor, place: _Place) -> Tensor:
        room = self._find_room(place, tensor)
        if room is None:
            self._room.pop(place, None)  # first, so that its memory can be used again
            room = torch.empty_like(tensor.detach(), device="cpu", pin_memory=tensor.is_cuda)
            self._room[place] = room
        room.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        return room

    def _find_room(self, place: _Place, tensor: Tensor) -> Tensor | None:
        room = self._room.get(place)
        if room is None or room.dtype != tensor.dtype or room.shape != tensor.shape:
            return None
        return room if room.stride() == torch.empty_like(tensor, device="meta").stride() else None


def _identify(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same numbers in the same memory."""
    where = (str(tensor.device), tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*where, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _list_tensors(state: Any, place: _Place) -> Iterator[tuple[_Place, Tensor]]:
    if isinstance(state, Tensor):
        yield place, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _list_tensors(value, (*place, key))
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from _list_tensors(value, (*place, i))
