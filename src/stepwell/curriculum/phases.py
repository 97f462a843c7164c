"""Tasks by phase: after some updates, new tasks are made from what was solved and what was not.

    phase 1: the run's first tasks ─► updates ─► results ─► generator ─► phase 2 ─► updates ─► …
                     │                                          │
                     └────────────── PhaseFiles ◄───────────────┘

A phase is made when the first of its updates asks for tasks, and stored before it is used. From then on its
file decides: a run that is killed and resumed has the very same tasks, even if the generator would now make
others. With a screen (`selection.py`), tasks are made until enough pass it; tasks of the environment fill the
rest.

Invariants
* Only tasks of the run's environment and of the training split are used, each once per phase; the others
  are left out, and stored with the reason.
* The tasks of a phase are played in shuffled order, and repeated if there are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stepwell.core import ConfigError, Task
from stepwell.curriculum.feeds import ShuffledList
from stepwell.curriculum.phase_files import DroppedTask, PhaseFiles, SourcedTask
from stepwell.curriculum.selection import MadeTask, TaskScreen, TaskSelection


@dataclass(frozen=True, slots=True)
class PhaseResults:
    """Solved and failed tasks of a phase, each in the phase's order; unplayed tasks are in neither."""

    solved: tuple[Task, ...] = ()
    failed: tuple[Task, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseRequest:
    """What a generator is asked for: about `num_tasks` tasks of phase number `phase`.

    `fresh` are as many tasks of the environment that no phase has had (again from the first, once all were
    used). `seed` is that of the phase. `results` are those of the phase before.
    """

    phase: int
    num_tasks: int
    seed: int
    fresh: tuple[Task, ...]
    results: PhaseResults


class TaskGenerator(Protocol):
    """Makes the tasks of a phase."""

    def __call__(self, request: PhaseRequest) -> Iterable[MadeTask]: ...


def take_fresh_tasks(request: PhaseRequest) -> Iterable[SourcedTask]:
    """New tasks of the environment, whatever the results."""
    return [SourcedTask(task, generator="fresh") for task in request.fresh]


class PhasedFeed:
    """A list of tasks per phase. `read_results` returns what became of the tasks of a phase.

    With `screen`, the generator may be endless: `max_tries` tasks are tried for one that is needed.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        files: PhaseFiles,
        generate: TaskGenerator,
        *,
        generator: str,
        tasks_per_update: int,
        updates_per_phase: int,
        seed: int,
        held_out_share: float,
        read_results: Callable[[int, Sequence[Task]], PhaseResults],
        note: Callable[[str], None] = lambda text: None,
        screen: TaskScreen | None = None,
        max_tries: int = 10,
        tasks_per_phase: int | None = None,
    ) -> None:
        self._supply, self._files, self._generate = tasks, files, generate
        self._generator, self._note = generator, note
        self._count, self._updates = tasks_per_update, updates_per_phase
        self._seed, self._held_out_share = seed, held_out_share
        self._read_results, self._screen, self._max_tries = read_results, screen, max_tries
        self._num_tasks = tasks_per_phase or tasks_per_update * updates_per_phase
        self._known = frozenset(task.id for task in tasks)
        self._lists: dict[int, ShuffledList] = {}

    @property
    def num_tasks(self) -> int:
        """How many tasks a phase has; by default enough that none is played twice."""
        return self._num_tasks

    def list_tasks(self, update: int) -> list[Task]:
        phase = self.find_phase(update)
        first = (update - 1 - (phase - 1) * self._updates) * self._count
        tasks = self._load_phase(phase)
        return [tasks.get_task(first + i) for i in range(self._count)]

    def find_phase(self, update: int) -> int:
        return (update - 1) // self._updates + 1

    def state(self) -> dict[str, Any]:
        phases = (phase for phase in range(1, max(self._lists, default=0) + 1))
        return {"digests": {str(phase): self._files.compute_digest(phase) for phase in phases}}

    def restore(self, state: Mapping[str, Any]) -> None:
        for phase, digest in state["digests"].items():
            if self._files.compute_digest(int(phase)) != digest:
                raise ConfigError(
                    f"the tasks of phase {phase} in {self._files.folder} are missing or were changed since "
                    "the checkpoint was written; put the file back, or start a new run"
                )

    def _load_phase(self, phase: int) -> ShuffledList:
        if phase not in self._lists:
            if not self._files.has_phase(phase):
                self._make_phase(phase)
            tasks = [each.task for each in self._files.read_phase(phase)]
            self._lists[phase] = ShuffledList(tasks, self._seed, phase)
        return self._lists[phase]

    def _make_phase(self, phase: int) -> None:
        fresh = self._take_supply(phase)
        selection = TaskSelection(self._known, self._held_out_share)
        if phase == 1:
            request = self._make_request(1, fresh, PhaseResults())
            selection.add_all(self._check_made(1, take_fresh_tasks(request)))
        else:
            results = self._read_results(phase - 1, self._load_phase(phase - 1).tasks)
            request = self._make_request(phase, fresh, results)
            self._select_made(selection, request)
            if not (selection.kept or selection.dropped or results.failed):  # nothing to make tasks from
                self._note(f"phase {phase - 1} left no task unsolved: tasks of the environment again")
                selection.kept = list(take_fresh_tasks(request))
        if selection.kept:
            self._files.write_phase(phase, selection.kept, selection.dropped)
            self._note(self._describe_selection(phase, selection))
        else:
            self._repeat_phase(phase, selection)

    def _repeat_phase(self, phase: int, selection: TaskSelection) -> None:
        """Play the tasks of the phase before again, because no new one is usable."""
        reasons = ", ".join(f"{count} {why}" for why, count in selection.count_reasons().items())
        found = f"made no usable task for phase {phase} ({reasons or 'none at all'})"
        if phase == 1 or not selection.dropped:
            raise ConfigError(f"curriculum.generator {self._generator} {found}")
        self._files.write_phase(phase, self._files.read_phase(phase - 1), selection.dropped)
        self._note(f"curriculum.generator {self._generator} {found}; phase {phase} has those of the last one")

    def _select_made(self, selection: TaskSelection, request: PhaseRequest) -> None:
        made = self._check_made(request.phase, self._generate(request))
        if self._screen is None:
            return selection.add_all(made)
        selection.seen |= {
            each.task.id for phase in range(1, request.phase) for each in self._files.read_phase(phase)
        }
        selection.add_screened(made, self._screen, self.num_tasks, self._max_tries * self.num_tasks)
        selection.fill_up(list(take_fresh_tasks(request)), self.num_tasks)

    def _describe_selection(self, phase: int, selection: TaskSelection) -> str:
        counts = selection.count_reasons()
        reasons = "".join(f"; {count} left out: {why}" for why, count in counts.items())
        num_made = sum(bool(each.parents) for each in selection.kept)
        made = f", {num_made} of them made from failures" if self._screen is not None and phase > 1 else ""
        return f"phase {phase}: {len(selection.kept)} tasks{made}{reasons}"

    def _make_request(self, phase: int, fresh: Sequence[Task], results: PhaseResults) -> PhaseRequest:
        seed = (self._seed * 1_000_003 + phase) % 2**63
        return PhaseRequest(phase, self.num_tasks, seed, tuple(fresh), results)

    def _take_supply(self, phase: int) -> list[Task]:
        """The next distinct tasks of the environment."""
        count = min(self.num_tasks, len(self._supply))
        first = (phase - 1) * self.num_tasks
        return [self._supply[(first + i) % len(self._supply)] for i in range(count)]

    def _check_made(self, phase: int, candidates: Iterable[MadeTask]) -> Iterator[MadeTask]:
        """Refuse a value that is not a task of this environment; the error names the generator."""
        for each in candidates:
            if isinstance(each, DroppedTask):
                yield each
                continue
            if not isinstance(each, SourcedTask) or each.task.env != self._supply[0].env:
                raise ConfigError(
                    f"curriculum.generator {self._generator}: phase {phase} needs SourcedTask of environment "
                    f"{self._supply[0].env!r}, got {each!r:.200}"
                )
            yield replace(each, generator=each.generator or self._generator)
