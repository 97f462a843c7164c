"""Tasks whose split is decided by their environment, not by chance.

A task's split follows from the hash of its content (`Task.split`). Some environments know better which split
a task belongs to: a household of another layout, a game that its makers published for testing. `assign_split`
gives such a task a `salt`: the smallest number with which its content hashes to that split.

Invariants
* A salted task is in its split for every `held_out_share` from 1/64 to 1/2.
* The same task and split give the same salt, so the task's id still follows from its content.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from stepwell.core import Split, Task

LEAST_SHARE, MOST_SHARE = 1 / 64, 1 / 2


def assign_split(task: Task, split: Split) -> Task:
    """Return `task` with the salt that puts it into `split`."""
    for salt in itertools.count():
        salted = replace(task, content={**task.content, "salt": salt})
        if salted.split(LEAST_SHARE) == split == salted.split(MOST_SHARE):
            return salted
    raise AssertionError("no salt is left")
