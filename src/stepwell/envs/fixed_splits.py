"""Tasks whose side of the wall is decided by their world, not by chance.

A task's split follows from the hash of its content (`Task.split`). Some worlds know better which side a
task belongs to: a household of another layout, a game that its makers published for testing. `stand` gives
such a task a `salt`, the least number with which its content hashes to the side asked for.

Invariants
* A salted task stands on its side for every `held_out_share` from 1/64 to 1/2.
* The same task asked for the same side gets the same salt, so its id stays a matter of content.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from stepwell.core import Split, Task

LEAST_SHARE, MOST_SHARE = 1 / 64, 1 / 2


def stand(task: Task, split: Split) -> Task:
    """`task` with the salt that puts it on the side `split`."""
    for salt in itertools.count():
        salted = replace(task, content={**task.content, "salt": salt})
        if salted.split(LEAST_SHARE) == split == salted.split(MOST_SHARE):
            return salted
    raise AssertionError("no salt is left")
