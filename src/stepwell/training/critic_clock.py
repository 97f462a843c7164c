"""Time of a critic's own passes, measured while they run together with the actor's.

    head's output ─► hook ─┐                       forward: from the embeddings' call to the head's output
                           ├─► one backward pass   backward: from the gradient of that output to that of
    first weights ─► hook ─┘                                 the critic's first weights, which come last

An update runs both models forward and both backward in one call, so they cannot be timed from
outside. Autograd processes later work first: the critic, which runs after the actor, is finished
before the actor's backward pass begins, so the two hooks enclose its share.

Only a critic with its own backbone has its own passes. On a GPU the marks are events in the
stream, read once at the end: nothing waits for the device in between. Embeddings and head run
outside captured passes (`policies/captured_passes.py`), so their hooks see every pass and no
recording. Hooks exist only inside `measure_critic_time`, so a policy can be copied and sent
without them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepwell.policies.critic import CriticModel


@contextmanager
def measure_critic_time(critic: Any, device: torch.device) -> Iterator[CriticClock]:
    """Time the passes of an own critic inside this context; a shared critic is not measured."""
    clock, hooks = CriticClock(is_cuda=device.type == "cuda"), []
    if isinstance(critic, CriticModel) and critic.backbone is not None:
        first = next(weights for weights in critic.backbone.parameters() if weights.requires_grad)
        hooks = [
            _find_entry(critic.backbone).register_forward_pre_hook(clock.start_forward),
            critic.head.register_forward_hook(clock.end_forward),
            first.register_post_accumulate_grad_hook(clock.end_backward),
        ]
    try:
        yield clock
    finally:
        for hook in hooks:
            hook.remove()


def _find_entry(backbone: Any) -> Any:
    """What a pass calls first: the embeddings, or all of a robot's encoder, which is never captured."""
    return backbone.get_input_embeddings() if hasattr(backbone, "get_input_embeddings") else backbone


class CriticClock:
    """Sums the time of a critic's passes."""

    def __init__(self, *, is_cuda: bool) -> None:
        self._is_cuda = is_cuda
        self._spans: list[tuple[Any, Any]] = []
        self._forward: Any = None
        self._backward: Any = None

    def read_metrics(self) -> dict[str, float]:
        """Return `time/critic_s` if there was a pass."""
        if not self._spans:
            return {}
        if not self._is_cuda:
            return {"time/critic_s": sum(end - start for start, end in self._spans)}
        self._spans[-1][1].synchronize()
        return {"time/critic_s": sum(start.elapsed_time(end) for start, end in self._spans) / 1000}

    def _mark_time(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def start_forward(self, module: Any, inputs: Any) -> None:
        """Mark the call of the embeddings."""
        self._forward = self._mark_time()

    def end_forward(self, module: Any, inputs: Any, values: torch.Tensor) -> None:
        """Mark the output of the head."""
        if self._forward is not None:
            self._spans.append((self._forward, self._mark_time()))
            self._forward = None
        if values.requires_grad:
            values.register_hook(self._start_backward)  # type: ignore[no-untyped-call]

    def _start_backward(self, gradient: torch.Tensor) -> None:
        self._backward = self._mark_time()

    def end_backward(self, weights: torch.Tensor) -> None:
        """Mark the gradient of the critic's first weights."""
        if self._backward is not None:
            self._spans.append((self._backward, self._mark_time()))
            self._backward = None
