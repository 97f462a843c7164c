"""Tasks made from failures without a model: easier, similar and harder ones, in turn.

    failed tasks ─► shuffle ─► one variant of each by the environment ─► shuffle ─► …     (endless)

The environment defines its variants (`Env.make_variant`). The evolver draws parents and relations, and
keeps the lineage. It goes on while there are variants; the caller takes as many as it needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import cycle

from stepwell.core import Task, TaskRelation
from stepwell.curriculum.phase_files import SourcedTask
from stepwell.curriculum.phases import PhaseRequest

MakeVariant = Callable[[Task, TaskRelation, random.Random], Task | None]
EVOLVE = "evolve"


class TaskEvolver:
    """Makes the tasks of a phase from what the phase before left unsolved."""

    def __init__(self, make_variant: MakeVariant) -> None:
        self._make_variant = make_variant

    def __call__(self, request: PhaseRequest) -> Iterator[SourcedTask]:
        failed, rng = list(request.results.failed), random.Random(request.seed)
        relations = cycle(TaskRelation)
        has_made = bool(failed)
        while has_made:
            rng.shuffle(failed)
            has_made = False
            for parent in failed:
                for _ in TaskRelation:  # a task without an easier variant may have a harder one
                    relation = next(relations)
                    made = self._make_variant(parent, relation, rng)
                    if made is not None:
                        has_made = True
                        yield SourcedTask(made, (parent.id,), EVOLVE, relation.value)
                        break
