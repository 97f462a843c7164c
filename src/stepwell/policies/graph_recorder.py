"""Records GPU work as CUDA graphs, and counts the memory that they keep."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch


class GraphRecorder:
    """Records what runs on the GPU, so that it can be launched again as one."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self.pool_bytes = 0
        """Memory that the graphs keep, besides that of tensors."""
        _all.add(self)

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run as usual, on the stream that records: kernels are compiled and planned there."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        self._stream.synchronize()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record without running; the result runs it."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = _count_unused_bytes()
        with torch.cuda.stream(self._stream):
            # thread_local: an engine in another thread may use the device at the same time
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                self._end_capture(graph)
        note_peak()  # until now the graph's memory was that of tensors
        self.pool_bytes += _count_unused_bytes() - before
        return graph.replay

    def _end_capture(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:  # what was run cannot be captured; torch goes on as if it still captured
            device = torch.cuda.current_device()
            torch._C._cuda_endAllocateToPool(device, self._pool)
            numbers = torch.cuda.default_generators[device]
            numbers.graphsafe_set_state(numbers.clone_state())
            raise


def _count_unused_bytes() -> int:
    """Memory that torch holds and no tensor uses."""
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


_all: weakref.WeakSet[GraphRecorder] = weakref.WeakSet()
_peaks = {"before": 0}


def measure_peak_bytes() -> int:
    """The most that tensors and graphs have held on the GPU: torch does not count what replays need."""
    now = torch.cuda.max_memory_allocated() + sum(each.pool_bytes for each in _all)
    return max(_peaks["before"], now)


def note_peak(*, is_new: bool = False) -> None:
    """Keep the peak so far, before graphs hold more or less; `is_new`: forget it, for a new measurement."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _peaks["before"] = 0 if is_new else measure_peak_bytes()
        torch.cuda.reset_peak_memory_stats()
