"""Tasks that nobody but a judge can tell: instructions on five addresses, more of them written by a model.

WebArena's case: instructions without evaluators start on sites that a person names, a model behind a chat API
writes new ones after those that failed, and a trained outcome model judges every episode. Our own sites stand
in for WebArena's, each behind an address of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benchmarks.webarena_path import serve_five
from tests.rollout.chat_server import Body, chatting
from tests.runs.outcome_rollouts import play_expert
from tests.runs.small import notes, played, timeless

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, OutcomeSource, Split, Status
from stepwell.curriculum import PhaseFiles
from stepwell.pool import Filter, open_pool
from stepwell.rewards.outcome_model.question import TextLimits
from stepwell.runs.build.components import Components
from stepwell.runs.outcome_model.rollouts import LabelledRollout
from stepwell.runs.outcome_model.training import OutcomeTraining, train_outcome_model
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train
from stepwell.training.answer_model import AnswerTraining

SITES = ("shopping", "reddit")
INSTRUCTIONS = [
    {"task": f"Find {thing} and say what stands there", "web": site}
    for site in SITES
    for thing in ("a lamp", "a cup", "the newest post", "a chair")
]


@pytest.fixture(scope="module")
def webarena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    path = tmp_path_factory.mktemp("tasks") / "instructions.json"
    path.write_text(json.dumps(INSTRUCTIONS))
    with serve_five() as (options, _):
        yield {**options, "tasks": str(path)}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outcome model that has seen few episodes of our own web."""
    folder = tmp_path_factory.mktemp("judge")
    shown = play_expert("web", 24, 0.5, Split.TRAIN, folder, templates=["shop.price"], max_turns=4)
    labelled = [LabelledRollout(each, each.status is Status.SUCCESS) for each in shown]
    settings = OutcomeTraining(limits=TextLimits(160, 96), answers=AnswerTraining(1, 8, 2e-3))
    train_outcome_model(labelled, folder / "orm", settings)
    return folder / "orm"


def make_web_config(webarena: dict[str, Any], folder: Path, *settings: str) -> RunConfig:
    options = {
        "source": "webarena",
        "webarena": webarena,
        "max_turns": 2,
        "max_tokens": 300,
        "page_form": "short",
    }
    base = {
        "env": {"name": "web", "options": options},
        "agent": {"guide": False, "context": "observation", "strategy": "no_think", "max_history_chars": 0},
        "policy": {"model": "tiny-0.3m", "critic": "own"},
        "engine": {"max_batch_size": 8, "max_length": 640},
        "sampling": {"max_tokens": 8},
        "recipe": {"name": "webrl"},
        "curriculum": {"num_phases": 2, "min_value": 0.0, "max_value": 1.0, "max_tries": 4},
        "train": {"num_updates": 2, "tasks_per_update": 6, "group_size": 1, "num_tasks": 8},
        "eval": {"num_tasks": 0},
        "monitor": {"console": False, "tensorboard": False, "report": False},
        "checkpoint": {"every": 1},
        "num_threads": 1,
        "folder": str(folder),
        "name": "run",
    }
    return load_config(RunConfig.model_validate(base), settings)


def write_by_rule(body: Body) -> Body:
    """New instructions about the listed things; one is a duplicate, one infeasible, one wants a flight."""
    system, user = (message["content"] for message in body["messages"])
    if "<answer>" in system:
        return {"content": f"<answer>{'NO' if 'moon' in user else 'YES'}</answer>"}
    things = re.findall(r"Find (.+?) and say", user)
    tasks = [f"Count the pages about {thing}" for thing in things] + [
        f"Find {things[0]} and say what stands there"
    ]
    return {"content": "\n".join(f"<task>{text}</task>" for text in (*tasks, "Fly to the moon"))}


def test_written_instructions_are_played_and_judged_by_the_outcome_model(
    webarena: dict[str, Any], judge: Path, tmp_path: Path
) -> None:
    with chatting() as server:
        server.say = write_by_rule
        writer = f'{{url = "{server.url}", model = "writer"}}'
        settings = ("curriculum.generator=endpoint", f"curriculum.endpoint={writer}")
        # the paper's first phase is a checker's; there is none here, so that the judge judges from the start
        folder = train(
            make_web_config(
                webarena, tmp_path, *settings, f"outcome.judge=model:{judge}", "outcome.from_phase=2"
            )
        )
        guides = [body["messages"][0]["content"] for body in server.bodies]
    files = PhaseFiles(folder / "tasks")
    first, second = files.read_phase(1), files.read_phase(2)
    assert all(not each.task.has_checker for each in (*first, *second))
    made = [each for each in second if each.parents]
    sites = {each.task.id: each.task.content["entry"]["web"] for each in first}  # type: ignore[index, call-overload]
    assert made and {(each.generator, each.relation) for each in made} == {("endpoint", "breadth-1")}
    for each in made:  # on the site of its parents, with a value of the critic and without an oracle
        assert {sites[parent] for parent in each.parents} == {each.task.content["entry"]["web"]}  # type: ignore[index, call-overload]
        assert each.value is not None and each.num_turns is None
        assert each.task.instruction.startswith("Count the pages about")
    assert {each.reason for each in files.read_dropped(2)} == {"duplicate", "infeasible (by the model)"}
    assert all(re.search(r"belong to: (shopping|reddit)$", text, re.MULTILINE) for text in guides)
    for update in (1, 2):
        episodes = played(folder, update)
        assert len(episodes) == 6 and all(each.steps for each in episodes)
        assert all(each.outcome and each.outcome.source is OutcomeSource.OUTCOME_MODEL for each in episodes)
        assert {each.status for each in episodes} == {Status.FAILURE}
    values = [entry.values for entry in timeless(folder) if entry.kind == "update"]
    assert all(each["outcome/unjudged"] == 0 and "outcome/agreement" not in each for each in values)
    assert [each["success"] for each in values] == [
        sum(episode.is_success for episode in played(folder, update)) / 6 for update in (1, 2)
    ]
    assert any("made from failures" in note for note in notes(folder))


def test_without_a_judge_the_run_is_refused_at_its_start_and_in_its_plan(
    webarena: dict[str, Any], judge: Path, tmp_path: Path
) -> None:
    refused = r"train tasks of web have no checker, such as 'Find.*set outcome\.judge to model:DIR"
    for start in (plan_run, train):
        with pytest.raises(ConfigError, match=refused):
            start(make_web_config(webarena, tmp_path))
    assert not (tmp_path / "run").exists()
    judged = f"outcome.judge=model:{judge}"
    assert "8 training tasks" in plan_run(make_web_config(webarena, tmp_path, judged))
    held_out = make_web_config(
        webarena, tmp_path, judged, "env.options.webarena.split=held_out", "eval.num_tasks=4"
    )
    components = Components(held_out)
    with (
        closing(components),
        pytest.raises(ConfigError, match="Held-out tasks are always judged by checkers"),
    ):
        components.list_held_out_tasks()


@pytest.mark.slow
def test_an_unjudged_episode_is_neither_solved_nor_failed(webarena: dict[str, Any], tmp_path: Path) -> None:
    """The judge answers for one site only; no task is written after those of the other."""
    with chatting() as server:
        listed: list[str] = []

        def say(body: Body) -> Body:
            system, user = (message["content"] for message in body["messages"])
            if "Is the task done?" in user or "Is the task done?" in system:
                return {"content": "Hm." if "Task: Find a lamp" in user else "<answer>NO</answer>"}
            listed.append(user)
            return write_by_rule(body)

        server.say = say
        writer = f'{{url = "{server.url}", model = "writer"}}'
        table = f'{{big = {{url = "{server.url}", model = "m", max_retries = 0, backoff_s = 0.0}}}}'
        folder = train(
            make_web_config(
                webarena,
                tmp_path,
                "curriculum.generator=endpoint",
                f"curriculum.endpoint={writer}",
                "outcome.judge=endpoint:big",
                f"outcome.endpoints={table}",
                "train.tasks_per_update=8",
            )
        )
    with closing(open_pool(folder / "pool")) as pool:
        waiting = list(pool.find(Filter(tags=("unjudged",))))
    assert waiting and all(entry.outcome is None for entry in waiting)
    assert listed and not any("Find a lamp and say" in text for text in listed)
