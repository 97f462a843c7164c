"""What is chosen for each variant first: which runs that takes, what they decide, and who uses it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.studies.study_files import study_of

from stepwell.config.study import StudyConfig, load_study, plan_runs
from stepwell.core.errors import ConfigError
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.studies.results import Results, RunResult
from stepwell.studies.selection import (
    choose_best,
    describe_choices,
    make_selection,
    read_choices,
    write_choices,
)
from stepwell.studies.study import run_study

TINY = """
name = "tiny"
seeds = [0]
rollouts = 4
tables = ["golden", "credit", "dynamics"]
[settings]
policy = { model = "tiny-0.3m", critic = "own" }
env.options = { size = 3, max_turns = 2 }
agent.guide = false
sampling.max_tokens = 8
warm_start = { num_demos = 4, batch_size = 4 }
eval = { every = 0, num_tasks = 2, samples_per_task = 2 }
train = { num_updates = 2, group_size = 1, num_tasks = 16, minibatches = 2, measure_credit = true }
[select]
seeds = [7]
settings.train.num_updates = 1
[[select.choices]]
name = "low"
settings.train.optimizer.learning_rate = 1e-4
[[select.choices]]
name = "middle"
settings.train.optimizer.learning_rate = 2e-4
[[select.choices]]
name = "high"
settings.train.optimizer.learning_rate = 4e-4
[[environments]]
name = "lake"
[[variants]]
name = "steppo"
[[variants]]
name = "matched"
settings.recipe = { name = "ppo", credit.clock = "step" }
[[variants]]
name = "steppo-0.95"
choice_of = "steppo"
settings.recipe.credit.gamma = 0.95
[[variants]]
name = "start"
settings.train.num_updates = 0
"""


def results_of(study: StudyConfig, scores: dict[str, list[float]]) -> Results:
    runs = [
        RunResult(f"lake-{variant}-seed7", "lake", variant, 7, "finished", tracks={"train_success": track})
        for variant, heights in scores.items()
        for track in [[(update, height) for update, height in enumerate(heights, start=1)]]
    ]
    return Results(make_selection(study), False, runs, {"lake": []}, {}, [], [])


def test_every_variant_with_an_own_choice_meets_every_choice_with_other_seeds(tmp_path: Path) -> None:
    runs = plan_runs(make_selection(study_of(TINY, tmp_path)), tmp_path, tmp_path / "runs")
    rates = {run.name: run.config.train.optimizer.learning_rate for run in runs}
    assert rates == {
        "lake-steppo.low-seed7": 1e-4,
        "lake-steppo.middle-seed7": 2e-4,
        "lake-steppo.high-seed7": 4e-4,
        "lake-matched.low-seed7": 1e-4,
        "lake-matched.middle-seed7": 2e-4,
        "lake-matched.high-seed7": 4e-4,
    }
    assert {run.config.train.num_updates for run in runs} == {1}


def test_the_end_of_training_decides_and_an_edge_is_told(tmp_path: Path) -> None:
    study = study_of(TINY, tmp_path)
    early = [0.9, 0.1, 0.1, 0.2]
    scores = {
        **{f"steppo.{name}": heights for name, heights in (("low", early), ("middle", [0.1, 0.1, 0.1, 0.5]))},
        **{
            f"matched.{name}": [0.1, 0.2, 0.3, end]
            for name, end in (("low", 0.4), ("middle", 0.6), ("high", 0.7))
        },
    }
    found = choose_best(study, results_of(study, scores))
    assert found["lake"]["steppo"] == {"choice": "middle", "scores": {"low": 0.2, "middle": 0.5}}
    assert describe_choices(study, found) == [
        "lake: steppo takes middle (low 0.200, middle 0.500)",
        "lake: matched takes high (low 0.400, middle 0.600, high 0.700; at the edge of the range)",
    ]
    write_choices(tmp_path, study, found)
    chosen = read_choices(study, tmp_path / "selected.json")
    runs = plan_runs(study, tmp_path, tmp_path / "runs", chosen=chosen)
    assert [run.config.train.optimizer.learning_rate for run in runs] == [2e-4, 4e-4, 2e-4, 3e-4]
    assert runs[-1].variant == "start"  # not trained: nothing is chosen for it


def test_held_out_tasks_decide_where_the_study_says_so(tmp_path: Path) -> None:
    study = study_of(TINY.replace("seeds = [7]", 'seeds = [7]\nscore = "held_out"'), tmp_path)
    results = results_of(study, {"steppo.low": [0.9], "steppo.high": [0.1]})
    for run, held_out in zip(results.runs, (0.3, 0.6), strict=True):
        run.success_after = held_out
    assert choose_best(study, results)["lake"]["steppo"] == {
        "choice": "high",
        "scores": {"low": 0.3, "high": 0.6},
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "Run the same command with --select"),
        ("{}", "holds no choices"),
        ('{"study": "other", "selected": {}}', "is of the study 'other'"),
        ('{"study": "tiny", "selected": {"lake": {}}}', "has no choice for steppo on lake"),
    ],
)
def test_a_comparison_without_its_choices_is_refused(
    content: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "selected.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        read_choices(study_of(TINY, tmp_path), file)


def test_seeds_of_the_choice_are_not_those_of_the_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seeds and select\.seeds together: 0 appears twice"):
        study_of(TINY.replace("seeds = [7]", "seeds = [0]"), tmp_path)
    with pytest.raises(ConfigError, match=r"has no \[select\]"):
        make_selection(study_of(TINY, tmp_path).shorten())


@pytest.mark.slow
def test_two_arms_are_compared_with_their_choices_and_the_columns_of_credit(tmp_path: Path) -> None:
    file, console = tmp_path / "tiny.toml", Console(file=io.StringIO(), width=300)
    file.write_text(
        TINY.split('[[variants]]\nname = "steppo-0.95"')[0].replace("rollouts = 4", "rollouts = 16")
    )
    choices = {"lake": {name: {"choice": "high", "scores": {}} for name in ("steppo", "matched")}}
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    write_choices(chosen, load_study(file), choices)
    done = run_study(
        file, selected=chosen / "selected.json", folder=tmp_path / "out", workers=1, console=console
    )
    assert (done.ending, done.choices) == ("complete", [])
    table = (tmp_path / "out" / "table.md").read_text()
    head = next(line for line in table.splitlines() if line.startswith("| variant | clipped"))
    assert (
        "| clipped | KL of an update | explained | explained, state | explained, inside | |A| step 1 |"
        in head
    )
    assert [line.split(":")[1].strip()[:23] for line in done.differences] == ["matched against steppo"[:23]]
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())["runs"]
    assert plan["lake-matched-seed0"]["train.optimizer.learning_rate"] == 4e-4


# --- the study of credit by step and by token ---------------------------------------------------


def test_arms_of_the_step_credit_study_differ_in_clock_and_unit_alone() -> None:
    folder = Path(__file__).parent.parent.parent / "studies"
    study, short = load_study(folder / "step_credit.toml"), load_study(folder / "step_credit_short.toml")
    runs, short_runs = (plan_runs(each, folder, Path("runs")) for each in (study, short))
    assert (len(runs), len(short_runs)) == (16 * 5, 13 * 5)
    arms = {run.variant: run.config for run in runs if run.seed == 0}
    assert {run.variant for run in short_runs} - set(arms) == {"token-ratio-clip"}
    credit = {
        name: (recipe.credit.name, *(recipe.credit.kwargs.get(key) for key in ("gamma", "clock")))
        for name, config in arms.items()
        if (recipe := resolve_recipe(config.recipe)).credit is not None
    }
    assert credit["steppo-0.95"] == ("step_gae", 0.95, None)
    assert credit["ppo-0.95"] == ("token_gae", 0.95, None)
    assert credit["matched-0.95"] == ("token_gae", 0.95, "step")
    pairs = {
        name: resolve_recipe(arms[name].recipe) for name in ("steppo-faster", "step-ratio", "token-ratio")
    }
    assert {(credit[name][0], recipe.loss.kwargs["ratio"]) for name, recipe in pairs.items()} == {
        ("step_gae", "step"),
        ("token_gae", "step"),
        ("step_gae", "token"),
    }
    assert {config.train.minibatches for name, config in arms.items() if "8x2" not in name} == {4}
    assert {config.agent.strategy for config in arms.values()} == {"grounding"}
    assert {run.config.agent.strategy for run in short_runs} == {"no_think"}
    assert len(plan_runs(make_selection(study), folder, Path("runs"))) == 4 * 4 * 2
