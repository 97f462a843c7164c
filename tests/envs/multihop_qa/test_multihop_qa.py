"""Multi-hop QA: searches, answers, the oracle, and calls that cannot be made."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import InputError, Split, StateForm, Task, ToolCall
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import measure_random_play
from stepwell.envs.check import check_env
from stepwell.envs.multihop_qa.env import MultihopQA
from stepwell.envs.multihop_qa.guide import EXAMPLE_PLAN, EXAMPLE_QUESTION
from stepwell.envs.multihop_qa.options import MultihopOptions

NAME = "multihop_qa"
FORMS: list[dict[str, Any]] = [
    {},
    {"domain": "out"},
    {"size": "tiny"},
    {"size": "tiny", "domain": "out"},
]


def search(query: str) -> str:
    return ToolCall("search", {"query": query}).text


def answer(text: str) -> str:
    return ToolCall("answer", {"text": text}).text


def tiny(**options: Any) -> MultihopQA:
    """A tiny environment at a question of two hops."""
    env = MultihopQA(MultihopOptions(size="tiny", **options))
    task = next(
        task for seed in range(100) if len((task := env.make_task(env.options, seed)).content["plan"]) == 2
    )  # type: ignore[arg-type]
    env.reset(options={"task": task})
    return env


def played(env: MultihopQA, task: Task) -> tuple[int, bool, int]:
    """Turns the oracle took, whether it succeeded, and the golden number told at the start."""
    _, told = env.reset(options={"task": task})
    for turn in range(1, env.options.max_turns + 1):
        _, _, terminated, _, info = env.step(env.oracle())
        if terminated:
            return turn, bool(info["success"]), int(told["golden"])  # type: ignore[arg-type]
    raise AssertionError("an episode ends at the limit")


@pytest.mark.parametrize("options", FORMS)
def test_the_env_keeps_the_contract(options: dict[str, Any]) -> None:
    report = check_env(NAME, options, num_tasks=10)
    assert report.ok, str(report)


@pytest.mark.parametrize("options", FORMS)
def test_the_oracle_solves_held_out_tasks_in_the_golden_number_of_turns(options: dict[str, Any]) -> None:
    env = make_env(NAME, options)
    for task in draw_tasks(NAME, options, Split.HELD_OUT, 100, seed=1):
        num_turns, success, golden = played(env, task)
        assert success
        assert num_turns == golden == 1 + len(task.content["plan"])  # type: ignore[arg-type]


@pytest.mark.parametrize("options", FORMS)
def test_random_play_fails(options: dict[str, Any]) -> None:
    tasks = draw_tasks(NAME, options, Split.HELD_OUT, 50, seed=2)
    assert measure_random_play(NAME, options, tasks, seed=0) < 0.1


def test_splits_share_no_question() -> None:
    sides = [draw_tasks(NAME, {}, split, 400, seed=3) for split in (Split.TRAIN, Split.HELD_OUT)]
    assert not {t.content["question"] for t in sides[0]} & {t.content["question"] for t in sides[1]}  # type: ignore[misc]


def test_an_episode_of_two_hops_by_hand() -> None:
    env = tiny()
    question = env.question
    start, middle = (turn[0] for turn in env.plan)
    first, last = question.removesuffix("?").split(" of ")[1], question.split()[1]
    assert env.observe().text == question
    observation, reward, terminated, _, info = env.step([search(start)])
    assert observation.text == f"{question}\n{start}: {env.index[start].text}"
    assert f"{first} {middle}" in observation.text
    assert (reward, terminated, info["success"]) == (0.0, False, False)
    observation, *_ = env.step([search(middle)])
    assert f"{middle}: " in observation.text
    assert f"{start}: " not in observation.text  # only the last turn's results are shown
    found = env.index[middle].text.split()
    right = found[found.index(last) + 1]
    _, reward, terminated, _, info = env.step([answer(right.lower() + ".")])
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_wrong_answer_ends_with_nothing() -> None:
    env = tiny()
    _, reward, terminated, _, info = env.step([answer("ZZ9 or AA1")])
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_the_first_answer_of_a_turn_ends_it() -> None:
    env = tiny()
    _, reward, terminated, _, info = env.step([answer("no"), answer(env.answers[0])])
    assert (reward, terminated, info["num_actions"]) == (0.0, True, 1)


def test_the_turn_limit_is_a_failure() -> None:
    env = tiny(max_turns=2)
    assert env.step([search("AA1")])[2] is False
    _, reward, terminated, truncated, info = env.step([search("AA1")])
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


def test_searches_of_a_turn_stand_together_and_a_passage_once() -> None:
    env = MultihopQA(MultihopOptions())
    env.reset(seed=0)
    observation, *_, info = env.step([search("Brazil"), search("Brazil (country)"), search("Oslo")])
    text = observation.text
    assert text.startswith("Question: ")
    assert text.count("- Brazil (country): Brazil is a country") == 1
    assert "- Brazil (country): see above" in text
    assert text.index("Found for 'Brazil':") < text.index("Found for 'Oslo':")
    assert info["result"] == "Brazil (country); Brazil (country); Oslo"
    assert text.count("\n- ") == 5 + 5 + 3


def test_earlier_turns_are_shown_where_asked() -> None:
    env = tiny(turns_shown=2)
    start, middle = (turn[0] for turn in env.plan)
    env.step([search(start)])
    assert f"{start}: " in env.step([search(middle)])[0].text


def test_more_results_are_shown_where_asked_and_passages_are_cut() -> None:
    env = MultihopQA(MultihopOptions(num_results=8, passage_chars=40))
    env.reset(seed=0)
    lines = env.step([search("airport")])[0].text.splitlines()[2:]
    assert len(lines) == 8
    assert all(line.endswith("...") for line in lines)
    assert all(len(line.split(": ", 1)[1]) == 40 for line in lines)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("search France", "Not done: not valid JSON"),
        ('{"name": "search"}', "Not done: search needs the argument 'query'."),
        ('{"name": "search", "arguments": {"query": 3}}', "must be of type string, not integer"),
        ('{"name": "search", "arguments": {"query": "x", "k": 9}}', "search has no argument 'k'"),
        ('{"name": "drop", "arguments": {}}', "there is no tool 'drop'; the tools are: search, answer"),
        (search("x" * 100_000), "is 100000 characters long, at most 500 are allowed"),
        (answer("x" * 1_000), "is 1000 characters long, at most 300 are allowed"),
        (search("'; DROP TABLE passages; --"), "No passage has these words."),
        (search('"*" NEAR(^:)'), "No passage has these words."),
        (search(""), "No passage has these words."),
        (search("東京 🗼"), "No passage has these words."),
        ("[" * 100_000, "Not done: not valid JSON"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing_else(action: str, says: str) -> None:
    env = tiny()
    observation, reward, terminated, truncated, info = env.step([action])
    assert says in observation.text
    assert observation.text.startswith(env.question)
    assert len(observation.text) < 500
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert env.golden_steps() == 3


@given(st.lists(st.text(max_size=40) | st.text(max_size=20).map(search), max_size=4))
def test_whatever_is_called_a_turn_is_played(actions: list[str]) -> None:
    env = tiny()
    observation, reward, terminated, _, info = env.step(actions)
    assert (reward, terminated) == (0.0, False)
    assert info["num_actions"] == len(actions)
    json.dumps(info)
    observation.text.encode()


def test_golden_steps_fall_with_what_was_found_and_rise_with_nothing() -> None:
    env = tiny()
    (start,), (middle,) = env.plan
    assert env.golden_steps() == 3
    env.step([search("no such code")])
    assert env.golden_steps() == 3
    env.step([search(start)])
    assert env.golden_steps() == 2
    env.step([search(middle)])
    assert env.golden_steps() == 1
    assert env.oracle() == [answer(env.answers[0])]


def test_fewer_searches_in_a_turn_make_the_golden_number_larger() -> None:
    env = MultihopQA(MultihopOptions(size="tiny", max_searches=1))
    for task in draw_tasks(NAME, {"size": "tiny"}, Split.TRAIN, 40, seed=4):
        num_turns, success, golden = played(env, task)
        assert success
        assert num_turns == golden == 1 + sum(len(turn) for turn in task.content["plan"])  # type: ignore[union-attr,arg-type,misc]


def test_hops_can_be_limited() -> None:
    tasks = draw_tasks(NAME, {"max_hops": 2}, Split.TRAIN, 100, seed=5)
    assert {len(task.content["plan"]) for task in tasks} == {2}  # type: ignore[arg-type]


def test_the_example_of_the_guide_is_true() -> None:
    env = MultihopQA(MultihopOptions(num_results=1))
    ids = {document.title: document.id for document in env.index.documents}
    plan = [[ids[title]] for title in EXAMPLE_PLAN]
    content: Any = {"question": EXAMPLE_QUESTION, "answers": ["47"], "plan": plan, "is_proven": True}
    env.reset(options={"task": Task("multihop_qa", content)})
    (example,) = env.description.examples.values()
    assert env.state()[StateForm.NATURAL_LANGUAGE] == example.observation
    assert env.oracle() == [example.answer]
    env.step([example.answer])
    assert env.state()[StateForm.NATURAL_LANGUAGE] == example.prediction
    env.step(env.oracle())
    assert "telephone code is 47" in env.observe().text
    assert env.step([answer("47")])[1] == 1.0


def test_copies_of_an_env_share_the_index_and_nothing_else() -> None:
    env = tiny()
    ahead = copy.deepcopy(env)
    ahead.step([search("AA1")])
    assert ahead.index is env.index
    assert env.turns == []


def test_a_task_of_another_collection_is_refused_with_the_reason() -> None:
    task = MultihopQA.make_task(MultihopOptions(size="tiny"), 0)
    with pytest.raises(InputError, match=r"set env\.options\.size, domain and dataset"):
        MultihopQA(MultihopOptions(domain="out")).reset(options={"task": task})
    with pytest.raises(InputError, match="'question', the list 'answers'"):
        tiny().reset(options={"task": Task("multihop_qa", {"question": "?"})})


def test_random_actions_can_be_made() -> None:
    env = tiny()
    rng = random.Random(0)
    calls = [json.loads(env.random_action(rng)) for _ in range(40)]
    assert {call["name"] for call in calls} == {"search", "answer"}
    assert all(next(iter(call["arguments"].values())) in env.index for call in calls)


def test_published_files_are_envs_too(tmp_path: Path) -> None:
    record = {
        "question": "In which land lies the town where Ann Ost was born?",
        "answer": "Norland",
        "supporting_facts": [["Ann Ost", 0], ["Wick", 0]],
        "context": [["Ann Ost", ["Ann Ost was born in Wick."]], ["Wick", ["Wick is in Norland."]]],
    }
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([record]))
    env = make_env(NAME, {"dataset": str(path)})
    observation, told = env.reset(seed=0)
    assert observation.text == f"Question: {record['question']}"
    assert told == {"golden": None}
    assert env.oracle() == [search("Ann Ost"), search("Wick")]
    observation, *_ = env.step(env.oracle())
    assert "- Wick: Wick is in Norland." in observation.text
    assert env.step([answer("the NORLAND")])[1] == 1.0
    path.write_text(json.dumps([record | {"answer": "Sudland"}]))
    assert env.make_task(env.options, 0).content["answers"] == ["Sudland"]


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"env\.options\.dataset: there is no file 'nowhere\.json'"):
        make_env(NAME, {"dataset": "nowhere.json"}).reset(seed=0)


def test_the_index_may_be_dense_or_hybrid(tmp_path: Path) -> None:
    paragraphs = [("Iron", "Iron is a metal."), ("Oslo", "Oslo is the capital of Norway.")]
    record = {
        "question": "?",
        "answer": "x",
        "supporting_facts": [["Iron", 0]],
        "context": [[title, [text]] for title, text in paragraphs],
    }
    path = tmp_path / "x.json"
    path.write_text(json.dumps([record]))
    for kind in ("dense", "hybrid"):
        env = make_env(NAME, {"dataset": str(path), "index": kind, "num_results": 1})
        env.reset(seed=0)
        assert "- Oslo:" in env.step([search("Scandinavian seat of government")])[0].text
