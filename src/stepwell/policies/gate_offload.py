"""Gate and up of some layers in the host's memory between a forward and its backward pass.

What a layer keeps for its backward pass is mostly the product for gate and up. A GPU's bus can carry about
half of them to the host and back while the layers compute, at little cost in time. `GateTraffic` is that
traffic for the layers of one model:

    entry = traffic.register(index, halves, n)  # the forward pass of layer `index` goes on at once
    entry.fetch_next()                          # its backward pass starts the way back of those needed next,
    halves = entry.receive()                    # and waits until its own are there

Invariants
* Copies run on a stream of their own, in the order of the layers, and use memory in the order of streams: the
  host, which is far ahead of the GPU, waits for nothing and takes no memory that is about to be free.
* What comes back is bit for bit what was sent.
* At most `AHEAD` layers' gates are on their way back before they are needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

AHEAD = 3
"""So many layers before its own turn, a layer's gates start their way back."""


class GateTraffic:
    """Copies to the host and back, for the layers of one model on one GPU."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._last: GateEntry | None = None
        self._leaving: list[GateEntry] = []
        self._unused: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, object]) -> GateTraffic:
        return GateTraffic()  # a copy of a model has traffic of its own

    def register(self, index: int, halves: Tensor | None, free_before: int) -> GateEntry:
        """Note that a layer ran forward; its gates, if given, go to the host.

        Those of layers below `free_before` should have left by now: what follows waits for them, and uses
        their memory.
        """
        if index == 0:
            self.free_gates(None)
        below = self._last if index and self._last is not None and self._last.index < index else None
        self._last = entry = GateEntry(self, index, below)
        if halves is not None:
            entry.send(halves)
            self._leaving.append(entry)
        self.free_gates(free_before)
        return entry

    def free_gates(self, before: int | None) -> None:
        """Free the gates of layers below this one, or of all; what follows waits for their copies."""
        while self._leaving and (before is None or self._leaving[0].index < before):
            self._leaving.pop(0).let_go()

    def open_stream(self, device: torch.device) -> Any:
        """The stream of the copies, made with the first of them."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._stream

    def take_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Memory of the host that the GPU can reach, used before if possible."""
        fitting = [each for each in self._unused if each.numel() >= size and each.dtype is dtype]
        if not fitting:
            return torch.empty(size, dtype=dtype, pin_memory=True)
        chosen = min(fitting, key=Tensor.numel)
        self._unused = [each for each in self._unused if each is not chosen]
        return chosen

    def return_buffer(self, buffer: Tensor) -> None:
        """Copies of the stream that follow may overwrite it."""
        self._unused.append(buffer)


class GateEntry:
    """One layer in one forward pass: where its gates are, and which layer ran before it."""

    def __init__(self, traffic: GateTraffic, index: int, below: GateEntry | None) -> None:
        self.traffic, self.index, self.below = traffic, index, below
        self._leaving: Tensor | None = None
        self._left: Any = None
        self._buffer: Tensor | None = None
        self._shape = torch.Size()
        self._device = torch.device("cuda")
        self._coming: Tensor | None = None
        self._arrival: Any = None

    @property
    def is_away(self) -> bool:
        """Whether this layer's gates are on the host."""
        return self._buffer is not None

    def send(self, halves: Tensor) -> None:
        """Start the copy to the host."""
        self._leaving, self._shape, self._device = halves, halves.shape, halves.device
        self._buffer = self.traffic.take_buffer(halves.numel(), halves.dtype)
        stream = self.traffic.open_stream(halves.device)
        stream.wait_stream(torch.cuda.current_stream(halves.device))
        with torch.cuda.stream(stream):
            self._buffer[: halves.numel()].copy_(halves.view(-1), non_blocking=True)
        self._left = stream.record_event()

    def let_go(self) -> None:
        """Free the gates on the GPU, for what runs after their copy."""
        torch.cuda.current_stream(self._device).wait_event(self._left)
        self._leaving = None

    def fetch(self) -> None:
        """Start copying back to the device; later calls do nothing."""
        if self._buffer is None or self._coming is not None:
            return
        stream = self.traffic.open_stream(self._device)
        # memory of the stream that computes: what used it before must have ended there
        self._coming = torch.empty(self._shape, dtype=self._buffer.dtype, device=self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._coming.view(-1).copy_(self._buffer[: self._shape.numel()], non_blocking=True)
        self._arrival = stream.record_event()

    def receive(self) -> Tensor:
        """The gates, on the GPU again; the entry forgets them."""
        self.fetch()
        assert self._coming is not None and self._buffer is not None
        torch.cuda.current_stream(self._device).wait_event(self._arrival)
        self.traffic.return_buffer(self._buffer)
        halves, self._coming, self._buffer = self._coming, None, None
        return halves

    def fetch_next(self) -> None:
        """Start the way back of the gates that are needed next, as this layer's backward pass begins."""
        self.traffic.free_gates(None)
        entry = self.below
        for _ in range(AHEAD):
            if entry is None:
                return
            entry.fetch()
            entry = entry.below
