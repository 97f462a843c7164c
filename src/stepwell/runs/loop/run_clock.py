"""The time of a run: how long it lasts, and what is due by the clock.

A resumed run goes on counting where its checkpoint was written. Pauses do not count. What is learnt never
depends on this clock, only when things are written.
"""

from __future__ import annotations

import time

import torch

from stepwell.config.outputs import CheckpointConfig
from stepwell.runs.loop.rollout_metrics import count_tokens
from stepwell.runs.loop.sources import Batch

TIMELINE_S = 5.0


class RunClock:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._began = self._saved_at = self._drawn_at = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run so far."""
        return time.perf_counter() - self._began

    def set_elapsed(self, seconds: float) -> None:
        """Continue from a checkpoint that was written after `seconds`."""
        self._began = time.perf_counter() - seconds

    def leave_out(self, seconds: float) -> None:
        """Do not count a pause as time of the run."""
        self._began += seconds

    def note_checkpoint(self) -> None:
        """A checkpoint was written now."""
        self._saved_at = time.perf_counter()

    def is_checkpoint_due(self, config: CheckpointConfig, update: int) -> bool:
        """By the number of the update, or because the last one is old."""
        waited_s = time.perf_counter() - self._saved_at
        is_late = config.every_minutes > 0 and waited_s >= 60 * config.every_minutes
        return is_late or is_multiple(config.every, update)

    def is_timeline_due(self) -> bool:
        """Whether the timeline of workers may be written again; asking counts as writing it."""
        now = time.perf_counter()
        if now - self._drawn_at <= TIMELINE_S:
            return False
        self._drawn_at = now
        return True


def is_multiple(every: int, update: int) -> bool:
    """Whether something that happens every so many updates happens now; 0: never."""
    return every > 0 and update % every == 0


def measure_times(batch: Batch, played: float, learnt: float, published: float) -> dict[str, float]:
    """Where the time of an update went, from the moments when its parts ended."""
    return {
        "time/rollout_s": batch.played_s,
        "time/update_s": learnt - played,
        "time/publish_s": published - learnt,
        "tokens_per_s": count_tokens(batch.trajectories) / (published - played + batch.played_s),
        "infra_errors": float(batch.num_retries),
        **_measure_gpu_memory(),
    }


def _measure_gpu_memory() -> dict[str, float]:
    """The most that this process's tensors have held on a GPU so far; `--dry-run` forecasts it."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    from stepwell.policies.graph_recorder import measure_peak_bytes

    return {"memory/gpu_peak_gb": measure_peak_bytes() / 1e9}
