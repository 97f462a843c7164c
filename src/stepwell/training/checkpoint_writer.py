"""Checkpoints beside training: the trainer waits for a copy in memory, a thread writes it.

    save ─► wait for the one before ─► copy (host_copy.py) ─► [thread] write, hash, flush, rename, prune

Invariants
* At most one checkpoint is being written, and they appear in the order in which they were asked for.
* What is written is the state at the time of `save`, whatever training does meanwhile.
* A failure of the thread is raised in the caller's thread: by `check`, by the next `save`, or by `wait`.
* Training waits for the whole write where a copy is impossible: it does not fit in free memory, or the ranks
  of a sharded run write their own parts. The first reason is noted once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from stepwell.core.host_memory import read_available_bytes
from stepwell.core.text import take_first_line
from stepwell.policies.policy_files import PolicyContent
from stepwell.training.checkpoint import CheckpointState
from stepwell.training.host_copy import HostCopy

Write = Callable[[CheckpointState], object]
SPARE_BYTES = 2**28
"""Memory that a copy must leave free."""


class CheckpointWriter:
    """Writes the checkpoints of one run. `waited_s` is the time for which its caller had to wait."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._room = note, HostCopy()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._has_noted = False
        self.waited_s = 0.0

    def save(self, collect: Callable[[], CheckpointState], write: Write) -> None:
        """Write what `collect` gives once the checkpoint before is on disk; returns when a copy is made."""
        with self._count_wait():
            self._join()
            state = collect()
            copied = self._copy_state(state)
            if copied is None:
                write(state)
                return
            self._thread = threading.Thread(
                target=self._run, args=(copied, write), name="stepwell-checkpoint", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait until everything is on disk; raises what went wrong."""
        with self._count_wait():
            self._join()

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is not on disk yet."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raise what went wrong so far, without waiting."""
        if not self.is_writing:
            self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, state: CheckpointState, write: Write) -> None:
        try:
            write(state)
        except BaseException as error:  # raised again in the caller's thread
            self._failure = error

    def _copy_state(self, state: CheckpointState) -> CheckpointState | None:
        """The state with copies of its tensors; None if there is none."""
        if state.save_shards is not None:
            return None
        tensors = {"weights": state.content.weights, "trainer": state.trainer}
        needed, free = self._room.count_new_bytes(tensors), read_available_bytes()
        if needed > max(free - SPARE_BYTES, 0):
            self._note_fallback(f"a copy needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")
            return None
        try:
            copied = self._room.take_copy(tensors)
        except (MemoryError, RuntimeError) as error:  # torch raises its own
            self._room.release()
            self._note_fallback(f"no copy could be made: {take_first_line(error)}")
            return None
        content = PolicyContent(copied["weights"], state.content.description)
        return replace(state, content=content, trainer=copied["trainer"])

    def _note_fallback(self, reason: str) -> None:
        if not self._has_noted:
            self._has_noted = True
            self._note(f"training waits while checkpoints are written ({reason})")

    @contextmanager
    def _count_wait(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - start
