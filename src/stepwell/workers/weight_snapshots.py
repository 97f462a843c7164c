"""Snapshots of the trainer's weights, from which generators are served while the trainer goes on.

    SnapshotBuffers.take_snapshot   copies what is trained to the host, in the generators' dtype
    WeightSnapshot.compute_marks    in another thread: a mark per part, and the fingerprint of the version
                  .list_buckets     the bytes of some parts, cut into pieces of a set size

The copy is all that the trainer waits for. From a GPU it is queued behind the trainer's kernels, into pinned
memory, and even that wait is somebody else's. There are two buffers: version v is written into one while the
other still holds version v - 1, from which a restarted generator is served until v has arrived everywhere.
Frozen parts are copied once.

Invariants
* A snapshot does not change until the snapshot after the next one is taken.
* A part is a weight, the frozen base of a weight that has an adapter, or one matrix of an adapter. Adapters
  keep their dtype, because they are merged before they are rounded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stepwell.core.weight_parts import Adapter, WeightParts
from stepwell.engines.weights import compute_marks, digest_marks, drop_tied_heads, fingerprint_of
from stepwell.workers.weight_bytes import SharedArrays

Piece = list[Any]
"""Name, dtype, shape and first byte of a part's bytes in a bucket."""


@dataclass(slots=True, eq=False)
class WeightBucket:
    """Pieces of parts, with their bytes. Several generators may get it."""

    pieces: list[Piece] = field(default_factory=list)
    arrays: SharedArrays = field(default_factory=SharedArrays)
    num_bytes: int = 0


@dataclass(eq=False)
class WeightSnapshot:
    """The parts of one version, on the host."""

    version: int
    tensors: dict[str, torch.Tensor]
    adapters: dict[str, Adapter]
    bucket_bytes: int
    marks: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    events: Sequence[Any] = ()  # of copies that a GPU may still be making
    frozen_marks: dict[str, str] = field(default_factory=dict)  # known ones, shared by all snapshots
    frozen: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, ...], list[WeightBucket]] = {}
        self._merged: dict[str, torch.Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        """Of all parts."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def compute_marks(self) -> None:
        """Wait for the copies, then mark every part. Takes time: not for the trainer's thread."""
        for event in self.events:
            event.synchronize()
        known = self.frozen_marks.keys() & self.frozen
        found = compute_marks({name: one for name, one in self.tensors.items() if name not in known})
        self.frozen_marks.update({name: mark for name, mark in found.items() if name in self.frozen})
        self.marks = found | {name: self.frozen_marks[name] for name in known & self.tensors.keys()}
        self.fingerprint = digest_marks(self.marks)

    def list_buckets(self, names: Iterable[str]) -> list[WeightBucket]:
        """The bytes of these parts. Generators that need the same parts share the buckets."""
        key = tuple(names)
        with self._lock:
            if key not in self._buckets:
                self._buckets[key] = self._cut_buckets(key)
            return self._buckets[key]

    def _cut_buckets(self, names: Sequence[str]) -> list[WeightBucket]:
        buckets = [WeightBucket()]
        for name in names:
            tensor = self.tensors[name]
            raw = tensor.reshape(-1).view(torch.uint8).numpy()
            kind, start = str(tensor.dtype).removeprefix("torch."), 0
            while start < raw.size or (start == 0 and not raw.size):
                room = self.bucket_bytes - buckets[-1].num_bytes
                if room <= 0:
                    buckets.append(WeightBucket())
                    continue
                piece = raw[start : start + room]
                buckets[-1].pieces.append([name, kind, list(tensor.shape), start])
                buckets[-1].arrays.append(piece)
                buckets[-1].num_bytes += piece.size
                start += piece.size
                if not raw.size:
                    break
        return buckets if names else []

    def merge_weights(self) -> dict[str, torch.Tensor]:
        """Whole weights under plain names, for a generator that takes nothing else."""
        with self._lock:
            if self._merged is None:
                self._merged = {n: t for n, t in self.tensors.items() if not self._is_of_adapter(n)}
                for name, adapter in self.adapters.items():
                    self._merged[name] = merge_adapter(
                        self.tensors[name], self.tensors[adapter.down], self.tensors[adapter.up], adapter
                    )
            return self._merged

    def fingerprint_merged(self) -> str:
        """The fingerprint of `merge_weights`."""
        return fingerprint_of(self.merge_weights()) if self.adapters else self.fingerprint

    def drop_copies(self) -> None:
        """Forget what was made for sending: buckets and merged weights can be made again."""
        with self._lock:
            self._buckets.clear()
            self._merged = None

    def _is_of_adapter(self, name: str) -> bool:
        return any(name in (adapter.down, adapter.up) for adapter in self.adapters.values())


def merge_adapter(base: torch.Tensor, down: torch.Tensor, up: torch.Tensor, adapter: Adapter) -> torch.Tensor:
    """A weight with its adapter: the sum that the trainer's own policy makes."""
    return base + ((up @ down) * adapter.scale).to(base.dtype)


class SnapshotBuffers:
    """Host memory for the snapshots of one policy."""

    def __init__(self, dtype: torch.dtype, bucket_bytes: int) -> None:
        self._dtype, self._bucket_bytes = dtype, bucket_bytes
        self._turns: tuple[dict[str, torch.Tensor], ...] = ({}, {})
        self._frozen: dict[str, torch.Tensor] = {}
        self._frozen_marks: dict[str, str] = {}

    @torch.no_grad()
    def take_snapshot(self, version: int, parts: WeightParts) -> WeightSnapshot:
        """Copy the weights as they are now. The snapshot before the last one becomes invalid."""
        buffers = self._turns = self._turns[::-1]
        of_adapters = {name for one in parts.adapters.values() for name in (one.down, one.up)}
        found: dict[str, torch.Tensor] = {}
        streams: dict[Any, Any] = {}
        for name, tensor in drop_tied_heads(parts.tensors).items():
            if name in parts.frozen and name in self._frozen:
                found[name] = self._frozen[name]
                continue
            is_rounded = tensor.is_floating_point() and name not in of_adapters
            held = self._frozen if name in parts.frozen else buffers[0]
            found[name] = held[name] = _copy_to_host(
                tensor.detach(), self._dtype if is_rounded else tensor.dtype, held.get(name)
            )
            if tensor.is_cuda:
                streams[tensor.device] = torch.cuda.current_stream(tensor.device)
        events = [stream.record_event() for stream in streams.values()]
        return WeightSnapshot(
            version,
            found,
            dict(parts.adapters),
            self._bucket_bytes,
            events=events,
            frozen_marks=self._frozen_marks,
            frozen=parts.frozen,
        )


def _copy_to_host(tensor: torch.Tensor, dtype: torch.dtype, buffer: torch.Tensor | None) -> torch.Tensor:
    if buffer is None or buffer.shape != tensor.shape or buffer.dtype != dtype:
        buffer = torch.empty(tensor.shape, dtype=dtype, pin_memory=tensor.is_cuda)
    if tensor.is_cuda:  # rounded there: half the bytes travel
        return buffer.copy_(tensor.to(dtype), non_blocking=True)
    return buffer.copy_(tensor)
