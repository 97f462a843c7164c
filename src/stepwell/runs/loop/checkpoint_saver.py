"""The checkpoints of a loop: numbered ones, and the weights of the best evaluation.

    save ─► the one before is on disk ─► collect, acknowledge ─► a copy in memory ─► [thread] write, prune

Invariants
* Update n is acknowledged to the pool only when the checkpoint before it is on disk: the pool may then forget
  what that one contains.
* The best weights wait for `save`, which writes them with the numbered checkpoint, or alone if none is due.
* The end of the run waits until everything is on disk. A second Ctrl-C does not: what was being written is
  left behind under its temporary name, as after a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.references import find_reference, remove_references
from stepwell.runs.loop.resumable_parts import ResumableParts
from stepwell.training import checkpoint
from stepwell.training.checkpoint_writer import CheckpointWriter


class CheckpointSaver:
    """Writes the checkpoints of the run in `folder`. As a context it waits for the last one."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._folder, self._writer = folder, CheckpointWriter(note)
        self._reported_s = 0.0
        self.is_best_due = False  # the present weights are the best so far, and not saved as such yet

    @property
    def waited_s(self) -> float:
        """Seconds that training waited for checkpoints so far."""
        return self._writer.waited_s

    def save(self, parts: ResumableParts, state: LoopState, *, is_numbered: bool) -> None:
        """Write a checkpoint, or the best weights alone if they are due, and prune old ones."""
        if not is_numbered and not self.is_best_due:
            return

        def collect() -> checkpoint.CheckpointState:
            loop = parts.collect(state)
            if is_numbered:
                parts.acknowledge(state.update)
            components = parts.components
            trainer = components.trainer if is_numbered else None
            return checkpoint.collect_state(components.policy, trainer, loop)

        may_roll_back = parts.components.config.train.guard.on_fall == "roll_back"
        protected = state.good_update if may_roll_back else None
        is_best, self.is_best_due = self.is_best_due, False
        name = None if is_numbered else checkpoint.BEST
        write = partial(self._write, parts, name, is_numbered and is_best, protected)
        self._writer.save(collect, write)

    def wait(self) -> None:
        """Wait until everything is on disk; raises what went wrong."""
        self._writer.wait()

    def check(self) -> None:
        """Raise what went wrong so far."""
        self._writer.check()

    def take_times(self) -> dict[str, float]:
        """Seconds that training waited since the last call, as a metric."""
        waited_s = self._writer.waited_s - self._reported_s
        self._reported_s = self._writer.waited_s
        return {"time/checkpoint_s": waited_s}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self._writer.wait()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # what stopped the run is more important

    def _write(
        self,
        parts: ResumableParts,
        name: str | None,
        is_best: bool,
        protected: int | None,
        state: checkpoint.CheckpointState,
    ) -> None:
        components, checkpoints = parts.components, self._folder / "checkpoints"
        checkpoint.write_checkpoint(checkpoints, state, name, is_best=is_best)
        checkpoint.prune_checkpoints(checkpoints, components.config.checkpoint.keep, protected)
        oldest = min((int(path.name[-6:]) for path in checkpoint.list_checkpoints(checkpoints)), default=0)
        remove_references(self._folder, find_reference(components, oldest))
