"""Messages between a trainer and its ranks: JSON with bytes over a socket, tensors as their bits.

    trainer ── {"do": …}, payload ──► rank       one command at a time, the same to all ranks
            ◄─ {"is": …}, payload ───            one answer per command; long ones come in pieces

Nothing is ever unpickled. An idle rank waits at its socket without a time limit, and notices there when the
trainer has ended.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only joins a run needs no torch: its child does
    from torch import Tensor

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_HEAD = struct.Struct("<IQ")
_BUCKET_BYTES = 64 << 20
Message = tuple[dict[str, Any], bytearray]
Named = tuple[str, "Tensor"]


def send_message(link: socket.socket, words: dict[str, Any], *payload: bytes | memoryview) -> None:
    """Send one message."""
    text = json.dumps(words).encode()
    link.sendall(_HEAD.pack(len(text), sum(map(len, payload))) + text)
    for piece in payload:
        link.sendall(piece)


def receive_message(link: socket.socket) -> Message | None:
    """The next message; None if the other side has closed the connection."""
    head = _read_bytes(link, _HEAD.size)
    if head is None:
        return None
    text_size, payload_size = _HEAD.unpack(head)
    text = _read_bytes(link, text_size)
    payload = _read_bytes(link, payload_size)
    return None if text is None or payload is None else (json.loads(text), payload)


def _read_bytes(link: socket.socket, size: int) -> bytearray | None:
    found = bytearray(size)
    view, place = memoryview(found), 0
    while place < size:
        count = link.recv_into(view[place:], size - place)
        if not count:
            return None
        place += count
    return found


def find_interface(host: str) -> str | None:
    """The network interface from which this machine reaches a host; None if the system does not say."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # nothing is sent
        except OSError:
            return None
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if found[20:24] == own:
                return name
    return None


def view_bytes(tensor: Tensor) -> memoryview:
    """The bits of a tensor; one on a device is copied to the host."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


def describe_tensor(name: str, tensor: Tensor) -> list[Any]:
    """Name, type and shape, from which `read_tensors` makes it again."""
    return [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def read_tensors(described: Sequence[list[Any]], payload: bytearray) -> Iterator[Named]:
    """The tensors of a payload, which they share."""
    import torch

    start = 0
    for name, kind, shape in described:
        dtype: torch.dtype = getattr(torch, kind)
        count = int(torch.Size(shape).numel())
        if count == 0:
            yield name, torch.zeros(shape, dtype=dtype)
            continue
        end = start + count * dtype.itemsize
        # a copy where a piece does not begin at a multiple of its size
        piece = memoryview(payload)[start:end]
        whole = piece if start % dtype.itemsize == 0 else bytearray(piece)
        yield name, torch.frombuffer(whole, dtype=dtype).view(shape)
        start = end


def split_buckets(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """Group consecutive tensors into about `_BUCKET_BYTES`: few messages, little memory."""
    bucket: list[Named] = []
    size = 0
    for name, tensor in tensors:
        bucket.append((name, tensor))
        size += tensor.numel() * tensor.element_size()
        if size >= _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def send_tensors(link: socket.socket, tensors: Iterable[Named]) -> None:
    """Send tensors in pieces; the answer that ends them is the caller's."""
    for bucket in split_buckets(tensors):
        described = [describe_tensor(name, tensor) for name, tensor in bucket]
        send_message(
            link, {"is": "tensors", "tensors": described}, *(view_bytes(tensor) for _, tensor in bucket)
        )
