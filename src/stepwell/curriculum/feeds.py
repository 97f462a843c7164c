"""Task feeds: which tasks an update plays.

    FixedFeed    one list, epoch after epoch in shuffled order
    PhasedFeed   a list per phase (`phases.py`); each is made once and stored

Invariants
* The tasks of an update are a pure function of the seed, the number of the update and what the feed has
  stored. A run that resumes asks for the same updates again and gets the very same tasks.
* `state` is what a checkpoint keeps; `restore` refuses a state that does not fit what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from stepwell.core import Task


class TaskFeed(Protocol):
    """Hands out the tasks of update 1, 2, …"""

    def list_tasks(self, update: int) -> list[Task]:
        """The tasks of one update, always as many."""

    def find_phase(self, update: int) -> int | None:
        """The phase of an update, from 1; None if there are no phases."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; empty if nothing is needed."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""


class ShuffledList:
    """A list of tasks, played epoch by epoch; every epoch has its own order."""

    def __init__(self, tasks: Sequence[Task], *seed: int) -> None:
        self.tasks, self._seed = tasks, seed
        self._epoch = -1
        self._order = np.arange(0)

    def get_task(self, place: int) -> Task:
        """The task number `place`, counted over all epochs."""
        epoch, place = divmod(place, len(self.tasks))
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([*self._seed[:1], epoch, 7, *self._seed[1:]]).permutation(
                len(self.tasks)
            )
        return self.tasks[int(self._order[place])]


class FixedFeed:
    """One list of tasks for the whole run."""

    def __init__(self, tasks: Sequence[Task], tasks_per_update: int, seed: int) -> None:
        self._list = ShuffledList(tasks, seed)
        self._count = tasks_per_update

    def list_tasks(self, update: int) -> list[Task]:
        first = (update - 1) * self._count
        return [self._list.get_task(first + i) for i in range(self._count)]

    def find_phase(self, update: int) -> int | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the order follows from seed and update."""
