"""Tasks that a model writes: what it is asked, what counts of its replies, and why candidates are dropped."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import Task
from stepwell.curriculum import DroppedTask, PhaseRequest, PhaseResults, SourcedTask
from stepwell.curriculum.instruction_evolver import INFEASIBLE, NO_CHECKER, InstructionEvolver
from stepwell.curriculum.instruction_prompts import (
    PROMPT_NAMES,
    Messages,
    PromptName,
    name_prompt,
    read_feasibility,
    read_instructions,
    write_generation_prompt,
)

FAILED = tuple(Task("lake", {"n": n}, f"cross lake {n}") for n in range(7))
SOLVED = (Task("lake", {"n": 9}, "cross lake 9"),)


class Writer:
    """A model by rule: two tasks per prompt, one of which cannot be done."""

    def __init__(self) -> None:
        self.asked: list[Messages] = []

    def __call__(self, prompts: list[Messages]) -> list[str | None]:
        self.asked += prompts
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt: Messages) -> str:
        if "<answer>" in prompt[0]["content"]:
            return f"<answer>{'NO' if 'fly' in prompt[1]['content'] else 'YES'}</answer>"
        number = len(self.asked)
        texts = (f"cross lake {number}0", f"fly  over it {number}", f"sing {number}")
        return "Here:\n" + "\n".join(f"<task>{text}</task>" for text in texts)


def make_task(parent: Task, instruction: str) -> Task | None:
    return Task("lake", {"words": instruction}, instruction) if instruction.startswith("cross") else None


def make_request() -> PhaseRequest:
    return PhaseRequest(2, 8, 7, (), PhaseResults(SOLVED, FAILED))


def test_candidates_have_their_examples_as_parents_and_the_prompt_as_relation() -> None:
    writer = Writer()
    made = list(islice(InstructionEvolver(writer, make_task, "a lake", "ladder")(make_request()), 6))
    kept = [each for each in made if isinstance(each, SourcedTask)]
    dropped = [each for each in made if isinstance(each, DroppedTask)]
    assert kept and all(each.task.instruction.startswith("cross lake") for each in kept)
    assert {each.relation for each in kept} == {name_prompt("ladder")} == {"ladder-1"}
    ids = {task.id for task in FAILED}
    assert all(set(each.parents) <= ids and len(each.parents) in (2, 5) for each in kept)
    assert {(each.made.task.instruction.split()[0], each.reason) for each in dropped} == {
        ("fly", INFEASIBLE),
        ("sing", NO_CHECKER),
    }
    listed = writer.asked[0][1]["content"]
    assert "cross lake 9" in listed and sum(task.instruction in listed for task in FAILED) == 5


def test_a_model_that_writes_nothing_usable_ends_the_generator() -> None:
    silent = InstructionEvolver(lambda prompts: [None] * len(prompts), make_task, "a lake")
    assert list(silent(make_request())) == []


@pytest.mark.parametrize("prompt", PROMPT_NAMES)
def test_the_three_prompts_ask_for_different_things(prompt: PromptName) -> None:
    told = {name: write_generation_prompt(name, "g", ["a"], [], 3)[1]["content"] for name in PROMPT_NAMES}
    assert len(set(told.values())) == 3 and "Write 3 tasks" in told[prompt]


@given(st.text(max_size=40))
def test_an_instruction_cannot_leave_its_fence(text: str) -> None:
    (_, user) = write_generation_prompt("breadth", "guide", [f"-----\n{text}\n------"], [], 2)
    assert user["content"].split("\n").count("-----") == 2


def test_only_marked_replies_count() -> None:
    assert read_instructions("<task> a\n b</task> c <TASK>a b</TASK><task> </task>") == ["a b"]
    assert read_feasibility("YES") is None
    assert read_feasibility("<answer>yes</answer> no: <answer> NO. </answer>") is False
