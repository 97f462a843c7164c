"""Which of the tasks that were made are used in a phase, and why the others are not.

    candidate ─► split ─► duplicate? ─► screen (feasible? how hard?) ─► kept │ dropped with its reason

A generator may also hand over tasks that it dropped itself (`DroppedTask`), with its reason.

`TaskScreen` is injected: it plays the oracle and asks the critic. A screened candidate is compared with every
task of every phase so far; without a screen (a user's own generator, which may well repeat tasks) only with
those of its own phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from stepwell.core import Split, Task
from stepwell.curriculum.phase_files import DroppedTask, SourcedTask

SCREENED_AT_ONCE = 64
MadeTask = SourcedTask | DroppedTask
HELD_OUT, DUPLICATE = "of the held-out split", "duplicate"


@dataclass(frozen=True, slots=True)
class ScreenResult:
    """The result of a screen for one task. Without a reason, the task is kept."""

    reason: str = ""
    value: float | None = None
    num_turns: int | None = None


class TaskScreen(Protocol):
    """Finds the tasks that can be solved and are neither too easy nor too hard."""

    def __call__(self, tasks: Sequence[Task]) -> list[ScreenResult]:
        """One result per task, in order."""


@dataclass(slots=True)
class TaskSelection:
    """The tasks of one phase while they are chosen. `seen` are ids that may not come again."""

    known: frozenset[str]
    held_out_share: float
    seen: set[str] = field(default_factory=set)
    kept: list[SourcedTask] = field(default_factory=list)
    dropped: list[DroppedTask] = field(default_factory=list)

    def add_all(self, new_tasks: Iterable[MadeTask]) -> None:
        """Keep what is of the training split and new, without a screen."""
        self.kept += self._drop_known(new_tasks)

    def add_screened(
        self, new_tasks: Iterable[MadeTask], screen: TaskScreen, num_tasks: int, max_candidates: int
    ) -> None:
        """Keep what passes the screen, until there are `num_tasks`, or `max_candidates` were tried."""
        candidates = islice(new_tasks, max_candidates)
        while len(self.kept) < num_tasks:
            new = self._collect_new(candidates)
            if not new:
                return
            for each, result in zip(new, screen([each.task for each in new]), strict=True):
                screened = replace(each, value=result.value, num_turns=result.num_turns)
                if result.reason:
                    self.dropped.append(DroppedTask(screened, result.reason))
                elif len(self.kept) < num_tasks:
                    self.kept.append(screened)

    def _collect_new(self, candidates: Iterator[MadeTask]) -> list[SourcedTask]:
        """The next candidates that are new, as many as are screened at once; fewer at their end.

        A screen plays them side by side, so that a few at a time would take much longer.
        """
        new: list[SourcedTask] = []
        while len(new) < SCREENED_AT_ONCE and (
            chunk := list(islice(candidates, SCREENED_AT_ONCE - len(new)))
        ):
            new += self._drop_known(chunk)
        return new

    def fill_up(self, fresh: Sequence[SourcedTask], num_tasks: int) -> None:
        """Add tasks of the environment until there are `num_tasks`, or all were added."""
        new = [each for each in fresh if each.task.id not in self.seen]
        for each in new[: max(0, num_tasks - len(self.kept))]:
            self.seen.add(each.task.id)
            self.kept.append(each)

    def count_reasons(self) -> dict[str, int]:
        """How many tasks were dropped, by reason, the most frequent first."""
        return dict(Counter(each.reason for each in self.dropped).most_common())

    def _drop_known(self, new_tasks: Iterable[MadeTask]) -> list[SourcedTask]:
        new = []
        for each in new_tasks:
            if isinstance(each, DroppedTask):
                self.dropped.append(each)
                continue
            is_known = each.task.id in self.known  # a file of tasks may have decided its split itself
            if not is_known and each.task.split(self.held_out_share) is not Split.TRAIN:
                self.dropped.append(DroppedTask(each, HELD_OUT))
            elif each.task.id in self.seen:
                self.dropped.append(DroppedTask(each, DUPLICATE))
            else:
                self.seen.add(each.task.id)
                new.append(each)
        return new
