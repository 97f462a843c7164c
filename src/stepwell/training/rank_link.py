"""Communication between the ranks of a trainer: messages over a socket, tensors over torch.distributed.

    rank 0 ── socket pair ──► rank r      commands as JSON and bytes; nothing is ever unpickled
    all    ══ process group ═ all         outputs, gradients and weights, in a fixed order

An idle rank waits at its socket without a time limit, and notices there when rank 0 has ended. A collective
waits at most `timeout_s`. Every trainer has its own process group and does not use the global group of
torch.distributed, so several trainers can exist in one process.

With NCCL, tensors go from device to device; otherwise they go through host memory (Gloo, loopback).
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_HEAD = struct.Struct("<IQ")
_BUCKET_BYTES = 64 << 20


def send_message(link: socket.socket, words: dict[str, Any], payload: bytes = b"") -> None:
    """Send one message."""
    text = json.dumps(words).encode()
    link.sendall(_HEAD.pack(len(text), len(payload)) + text)
    link.sendall(payload)


def receive_message(link: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None if the other side has closed the connection."""
    head = _read_bytes(link, _HEAD.size)
    if head is None:
        return None
    text_size, payload_size = _HEAD.unpack(head)
    text = _read_bytes(link, text_size)
    payload = _read_bytes(link, payload_size)
    return None if text is None or payload is None else (json.loads(text), payload)


def _read_bytes(link: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        piece = link.recv(min(size - len(found), 1 << 20))
        if not piece:
            return None
        found += piece
    return bytes(found)


class RankCollectives:
    """Collectives among the ranks; each returns when it is done, or raises RuntimeError."""

    def __init__(self, folder: Path, rank: int, size: int, *, on_devices: bool, timeout_s: float) -> None:
        self.rank, self._on_devices = rank, on_devices
        group: Any = dist.ProcessGroupNCCL if on_devices else dist.ProcessGroupGloo
        options = group.Options() if on_devices else group._Options()
        options._timeout = timedelta(seconds=timeout_s)
        if on_devices:
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # makes `wait` raise instead of killing
        else:
            options._devices = [group.create_device(hostname="127.0.0.1")]
        store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=timeout_s))
        self._group = group(store, rank, size, options)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the tensors of rank 0, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        for bucket in _split_buckets(tensors):
            joined = self._join_bucket(bucket)
            self._group.broadcast([joined], options).wait()
            if self.rank > 0:
                _scatter_bucket(joined, bucket)

    def sum_to_first(self, tensors: Iterable[Tensor]) -> None:
        """Sum the tensors of all ranks, in place at rank 0; the other ranks' tensors do not change."""
        options = dist.ReduceOptions()
        options.rootRank = 0
        for bucket in _split_buckets(tensors):
            joined = self._join_bucket(bucket)
            self._group.reduce([joined], options).wait()
            if self.rank == 0:
                _scatter_bucket(joined, bucket)

    def reduce_any(self, flags: Sequence[bool], device: torch.device) -> list[bool]:
        """Which flags are set on any rank; all ranks get the same result."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        found = torch.tensor(flags, dtype=torch.uint8, device=device if self._on_devices else "cpu")
        self._group.allreduce([found], options).wait()
        return [bool(flag) for flag in found.tolist()]

    def _join_bucket(self, bucket: Sequence[Tensor]) -> Tensor:
        joined = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
        return joined if self._on_devices else joined.cpu()


def _split_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive tensors of one dtype into about `_BUCKET_BYTES`: few messages, little memory."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size >= _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


@torch.no_grad()
def _scatter_bucket(joined: Tensor, bucket: Sequence[Tensor]) -> None:
    for tensor, part in zip(bucket, torch.split(joined, [tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(part.view_as(tensor))
