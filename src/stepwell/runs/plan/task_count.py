"""How many tasks a run finds, counted for at most a moment.

A plan must answer at once, and some environments need milliseconds to make a task. Counting therefore stops
after `MAX_SECONDS` of processor time, but never before the `MIN_TASKS` that a plan plays. A stopped count
says "at least".
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from stepwell.core import Task

MAX_SECONDS = 0.05
MIN_TASKS = 2


@dataclass(frozen=True, slots=True)
class TaskCount:
    """The tasks found so far. `is_stopped`: there may be more."""

    tasks: tuple[Task, ...]
    num_wanted: int
    is_stopped: bool

    @classmethod
    def count_tasks(cls, tasks: Iterable[Task], num_wanted: int) -> TaskCount:
        """Count until there are enough, or the time is over."""
        found: list[Task] = []
        end = time.process_time() + MAX_SECONDS
        for task in tasks:
            found.append(task)
            if len(found) == num_wanted:
                break
            if len(found) >= MIN_TASKS and time.process_time() > end:
                return cls(tuple(found), num_wanted, is_stopped=True)
        return cls(tuple(found), num_wanted, is_stopped=False)

    @property
    def is_too_small(self) -> bool:
        """Whether there are fewer than wanted, for certain."""
        return not self.is_stopped and len(self.tasks) < self.num_wanted

    @property
    def num_used(self) -> int:
        """The tasks that the run will use, as far as is known."""
        return self.num_wanted if self.is_stopped else len(self.tasks)

    def describe(self) -> str:
        """ "64", or "at least 812 of 4,096" if counting was stopped."""
        counted = f"{len(self.tasks):,}"
        return f"at least {counted} of {self.num_wanted:,}" if self.is_stopped else counted
