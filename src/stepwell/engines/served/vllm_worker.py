"""Runs inside vLLM's workers: takes new weights from the trainer by collective broadcast, without a folder.

    vllm serve ... --worker-extension-cls stepwell.engines.served.vllm_worker.CollectiveWorker

vLLM mixes the class into its own worker, and `/collective_rpc` calls the methods by name. Only torch and the
standard library are imported here, so that this package need not be installed where vLLM is: its `src` on
PYTHONPATH suffices.

    report_stepwell_group     which worker this is, and whether it is in a group
    join_stepwell_group       a group of the trainer (member 0) and this server's workers, over TCP (Gloo)
    receive_stepwell_weights  buckets of bytes from member 0, as weights for vLLM's `reload_weights`

Invariants
* Both sides cut the same parts into the same buckets (`plan_buckets`).
* The digest of what came is returned, and the trainer compares it with that of what it sent.
"""

from __future__ import annotations

import hashlib
import math
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed  # its types leave out stores
Part = Sequence[Any]
"""Name, dtype and shape of a weight."""


def count_bytes(part: Part) -> int:
    """Bytes of a weight."""
    return int(math.prod(part[2]) * getattr(torch, part[1]).itemsize)


def plan_buckets(parts: Sequence[Part], bucket_bytes: int) -> Iterator[list[Part]]:
    """Whole weights, one after the other, together about as large as asked for.

    >>> list(plan_buckets([["a", "uint8", [3]], ["b", "uint8", [3]], ["c", "uint8", [9]]], 6))
    [[['a', 'uint8', [3]], ['b', 'uint8', [3]]], [['c', 'uint8', [9]]]]
    """
    bucket: list[Part] = []
    size = 0
    for part in parts:
        if bucket and size + count_bytes(part) > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(part)
        size += count_bytes(part)
    if bucket:
        yield bucket


def join_group(store: Any, host: str, member: int, num_members: int, timeout_s: float) -> Any:
    """A group over TCP. `host` is the address at which the others reach this member."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout_s)
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), member, num_members, options)


def find_own_address(address: str, port: int) -> str:
    """The address from which this machine reaches another one."""
    with socket.create_connection((address, port), timeout=30) as connection:
        return str(connection.getsockname()[0])


class CollectiveWorker:
    """A vLLM worker that can join a group with the trainer. vLLM gives it `rank` and `reload_weights`."""

    rank: int
    reload_weights: Any  # no values here: vLLM refuses extensions that replace what a worker has
    _stepwell_group: tuple[str, Any, Any] | None = None

    def report_stepwell_group(self) -> dict[str, Any]:
        """Its number, and the name of its group."""
        return {"rank": self.rank, "group": self._stepwell_group[0] if self._stepwell_group else None}

    def join_stepwell_group(
        self, name: str, address: str, port: int, num_members: int, timeout_s: float
    ) -> dict[str, Any]:
        """Join a new group as member `rank` + 1; returns when all members have joined."""
        self._stepwell_group = None
        host = find_own_address(address, port)
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))
        group = join_group(store, host, self.rank + 1, num_members, timeout_s)
        self._stepwell_group = name, group, store
        return self.report_stepwell_group()

    def receive_stepwell_weights(self, name: str, parts: Sequence[Part], bucket_bytes: int) -> dict[str, Any]:
        """Load the weights that member 0 broadcasts now; the digest of their bytes."""
        if self._stepwell_group is None or self._stepwell_group[0] != name:
            raise RuntimeError(f"this worker is not in the group {name}")
        group, digest = self._stepwell_group[1], hashlib.blake2b(digest_size=16)

        def receive() -> Iterator[tuple[str, torch.Tensor]]:
            for bucket in plan_buckets(parts, bucket_bytes):
                raw = torch.empty(sum(map(count_bytes, bucket)), dtype=torch.uint8)
                group.broadcast(raw, 0).wait()
                digest.update(raw.numpy().data)
                start = 0
                for part in bucket:
                    end = start + count_bytes(part)
                    piece = raw[start:end].clone()  # aligned for its dtype
                    yield part[0], piece.view(getattr(torch, part[1])).reshape(part[2])
                    start = end

        weights = receive()
        try:
            self.reload_weights(weights_iterator=weights)
        finally:
            for _ in weights:  # a rank that stops early would leave the others in the broadcast
                pass
        return {"digest": digest.hexdigest()}
