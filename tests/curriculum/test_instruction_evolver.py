"""Tasks that a model writes: what it is asked, what counts of its replies, and why candidates are dropped."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import UNCHECKED_TAG, Task
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


def test_with_a_judge_tasks_without_a_checker_are_kept_one_family_in_a_prompt() -> None:
    def make_free(parent: Task, instruction: str) -> Task | None:
        if instruction.startswith("sing"):
            return Task("lake", {"sing": instruction}, instruction, tags=(UNCHECKED_TAG,))
        return make_task(parent, instruction)

    def name_family(task: Task) -> str:
        return "even" if int(task.instruction.split()[-1]) % 2 == 0 else "odd"

    writer = Writer()
    evolver = InstructionEvolver(writer, make_free, "a lake", allows_unchecked=True, name_family=name_family)
    made = list(islice(evolver(make_request()), 9))
    kept = [each for each in made if isinstance(each, SourcedTask)]
    assert {each.task.instruction.split()[0] for each in kept} == {"cross", "sing"}
    assert {each.task.has_checker for each in kept} == {True, False}
    for asked in writer.asked:
        if "<answer>" not in asked[0]["content"]:
            numbers = {
                int(n) % 2
                for n in re.findall(r"cross lake (\d)$", asked[1]["content"].partition("It can")[0], re.M)
            }
            assert len(numbers) == 1
            family = "odd" if 1 in numbers else "even"
            assert f"belong to: {family}" in asked[0]["content"]
    strict = list(islice(InstructionEvolver(Writer(), make_free, "a lake")(make_request()), 9))
    reasons = {
        each.made.task.instruction.split()[0]: each.reason for each in strict if isinstance(each, DroppedTask)
    }
    assert reasons == {"fly": INFEASIBLE, "sing": NO_CHECKER}
