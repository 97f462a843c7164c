"""A user's agent for jobs that come one by one: any thread submits them, one thread serves.

    submit_jobs ─► serve ─► processes ─► on_result        until stop_serving

What happens to an episode is decided as in `AgentProcesses.run`.

Invariants
* Every submitted job has exactly one result, unless `serve` ended before.
* When `serve` has returned, however it ended, no episode continues.
"""

from __future__ import annotations

import contextlib
import os
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from stepwell.rollout.agent_jobs import AgentJob, AgentResult, Attempt, Round
from stepwell.rollout.agent_processes import AgentProcesses


class AgentService(AgentProcesses):
    """Processes that play the jobs that other threads submit. The settings are those of `AgentProcesses`."""

    def __init__(self, target: str, **settings: Any) -> None:
        self._submitted: deque[AgentJob] = deque()
        self._is_stopping = False
        self._awake, self._waker = os.pipe()
        for end in (self._awake, self._waker):
            os.set_blocking(end, False)
        super().__init__(target, **settings)

    def serve(
        self,
        on_result: Callable[[AgentResult], None],
        *,
        on_retry: Callable[[AgentJob, AgentResult], AgentJob] | None = None,
    ) -> None:
        """Play submitted jobs until `stop_serving`; episodes that still run then end without a result.

        Both functions are called in this thread.
        """
        with self._lock_out_others():
            self._round = Round([], {}, on_result, on_retry)
            self._selector.register(self._awake, selectors.EVENT_READ, None)
            try:
                while not self._is_stopping:
                    self._take_submitted()
                    self._play_turn()
                    self._round.results.clear()
            finally:
                self._selector.unregister(self._awake)
                self._end_workers()

    def _take_submitted(self) -> None:
        while self._submitted:
            number = next(self._numbers)
            self._round.waiting.append(Attempt(number, self._submitted.popleft(), number))

    def submit_jobs(self, jobs: Sequence[AgentJob]) -> None:
        """Add jobs to those that `serve` plays. Their ids must differ from those under way."""
        self._submitted.extend(jobs)
        self._wake_up()

    def stop_serving(self) -> None:
        """Let `serve` end the episodes under way, and return."""
        self._is_stopping = True
        self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it wakes up anyway
            os.write(self._waker, b".")

    def close(self) -> None:
        """End every process. Calling it twice is fine."""
        super().close()
        for end in (self._awake, self._waker):
            if end >= 0:
                os.close(end)
        self._awake = self._waker = -1
