"""Tasks made from failures by a model that writes instructions.

    failed tasks ─► prompt ─► instructions ─► feasible? ─► the environment makes a task of each ─► candidates
                                   │             └─► infeasible (by the model)
                                   └─► no checker: the environment cannot tell when it is solved

With a judge of outcomes (`allows_unchecked`), tasks without a checker are kept as well: the judge will tell.
Each prompt then lists failed tasks of one family (such as a site), because a task in free words belongs to
the data of its parents.

The model and the environment are injected. `ask` sends prompts and returns replies in their order (None where
there was none); `make_task` turns an instruction into a task on the parent's data. A candidate that the
model finds feasible is screened as every evolved task is. Its parents are all tasks of its prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from stepwell.core import Task
from stepwell.curriculum.instruction_prompts import (
    Messages,
    PromptName,
    name_prompt,
    read_feasibility,
    read_instructions,
    write_feasibility_prompt,
    write_generation_prompt,
)
from stepwell.curriculum.phase_files import DroppedTask, SourcedTask
from stepwell.curriculum.phases import PhaseRequest

ENDPOINT = "endpoint"
NO_CHECKER, INFEASIBLE = "no checker", "infeasible (by the model)"
NUM_EXAMPLES, NUM_SOLVED, NUM_WRITTEN, NUM_PROMPTS = 5, 3, 8, 4

Ask = Callable[[Sequence[Messages]], list[str | None]]
MakeTask = Callable[[Task, str], Task | None]
NameFamily = Callable[[Task], str]


class InstructionEvolver:
    """Makes the tasks of a phase from what the phase before left unsolved, by asking a model."""

    def __init__(
        self,
        ask: Ask,
        make_task: MakeTask,
        guide: str,
        prompt: PromptName = "breadth",
        *,
        allows_unchecked: bool = False,
        name_family: NameFamily = lambda task: "",
    ) -> None:
        self._ask, self._make_task, self._guide, self._prompt = ask, make_task, guide, prompt
        self._allows_unchecked = allows_unchecked
        self._name_family: NameFamily = name_family if allows_unchecked else lambda task: ""

    def __call__(self, request: PhaseRequest) -> Iterator[SourcedTask | DroppedTask]:
        rng = random.Random(request.seed)
        failed = [task for task in request.results.failed if task.instruction]
        solved = [task.instruction for task in request.results.solved if task.instruction]
        has_made = bool(failed)
        while has_made:
            rng.shuffle(failed)
            has_made = False
            chunks = self._split_tasks(failed)
            for first in range(0, len(chunks), NUM_PROMPTS):
                for each in self._write_tasks(chunks[first : first + NUM_PROMPTS], solved, rng):
                    has_made = has_made or isinstance(each, SourcedTask)
                    yield each

    def _split_tasks(self, tasks: Sequence[Task]) -> list[Sequence[Task]]:
        """The tasks of each prompt: some of one family."""
        families: dict[str, list[Task]] = {}
        for task in tasks:
            families.setdefault(self._name_family(task), []).append(task)
        return [
            members[i : i + NUM_EXAMPLES]
            for members in families.values()
            for i in range(0, len(members), NUM_EXAMPLES)
        ]

    def _describe_place(self, task: Task) -> str:
        """The environment's guide, and the family that a prompt is about."""
        family = self._name_family(task)
        return f"{self._guide}\nThe tasks here belong to: {family}" if family else self._guide

    def _write_tasks(
        self, chunks: Sequence[Sequence[Task]], solved: Sequence[str], rng: random.Random
    ) -> Iterator[SourcedTask | DroppedTask]:
        known = rng.sample(list(solved), min(NUM_SOLVED, len(solved)))
        prompts = [
            write_generation_prompt(
                self._prompt,
                self._describe_place(chunk[0]),
                [task.instruction for task in chunk],
                known,
                NUM_WRITTEN,
            )
            for chunk in chunks
        ]
        written = [
            (chunk, instruction)
            for chunk, reply in zip(chunks, self._ask(prompts), strict=True)
            for instruction in read_instructions(reply or "")
        ]
        asked = self._ask(
            [write_feasibility_prompt(self._describe_place(chunk[0]), text) for chunk, text in written]
        )
        for (chunk, instruction), reply in zip(written, asked, strict=True):
            yield self._make_candidate(chunk, instruction, read_feasibility(reply or ""))

    def _make_candidate(
        self, parents: Sequence[Task], instruction: str, is_feasible: bool | None
    ) -> SourcedTask | DroppedTask:
        all_made = [task for parent in parents if (task := self._make_task(parent, instruction))]
        made = next((task for task in all_made if task.has_checker), None)
        if made is None and self._allows_unchecked:
            made = next(iter(all_made), None)
        plain = Task(parents[0].env, {"instruction": instruction}, instruction)
        fed = SourcedTask(
            made or plain, tuple(parent.id for parent in parents), ENDPOINT, name_prompt(self._prompt)
        )
        if is_feasible is not True:
            return DroppedTask(fed, INFEASIBLE)
        return fed if made is not None else DroppedTask(fed, NO_CHECKER)
