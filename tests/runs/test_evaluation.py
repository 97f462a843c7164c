"""Evaluation: the same tasks every time, and figures that agree with counting."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.small import small_components, small_config, timeless

from stepwell.core import EnvError, ModelError, Split, Status, Task, Trajectory
from stepwell.core.statistics import compute_wilson_interval
from stepwell.runs.evaluation.evaluate import evaluate_run, find_checkpoint
from stepwell.runs.evaluation.held_out import evaluate
from stepwell.runs.evaluation.result import EvalResult
from stepwell.runs.run import train

ENVS = "tests.runs.broken_envs"


def result(outcomes: list[list[int]]) -> EvalResult:
    """One row per task, 1 for a success."""
    trajectories = [
        Trajectory(Task("lake", {"n": i}), [], Status.SUCCESS if won else Status.FAILURE)
        for i, row in enumerate(outcomes)
        for won in row
    ]
    return EvalResult(trajectories, len(outcomes[0]), temperature=1.0)


@pytest.mark.parametrize(
    ("wins", "count", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_wilsons_interval_is_the_published_one(wins: int, count: int, low: float, high: float) -> None:
    assert compute_wilson_interval(wins, count) == pytest.approx((low, high), abs=1e-4)


@given(count=st.integers(1, 500), share=st.floats(0, 1))
def test_wilsons_interval_holds_the_share_and_solves_its_equation(count: int, share: float) -> None:
    wins = round(share * count)
    low, high = compute_wilson_interval(wins, count)
    assert 0.0 <= low <= wins / count <= high <= 1.0
    for end in (low, high):
        if 0.0 < end < 1.0:  # where the true share is the end, what was seen is 1.96 deviations away
            gap = abs(wins / count - end) / math.sqrt(end * (1 - end) / count)
            assert gap == pytest.approx(1.959964, rel=1e-6)


FIVE = st.lists(st.integers(0, 1), min_size=5, max_size=5)


@given(rows=st.lists(FIVE, min_size=1, max_size=5), k=st.integers(1, 5))
def test_pass_at_k_is_the_share_of_choices_with_a_success(rows: list[list[int]], k: int) -> None:
    counted = [np.mean([any(choice) for choice in itertools.combinations(row, k)]) for row in rows]
    assert result(rows).pass_at(k) == pytest.approx(np.mean(counted))


def test_repeated_attempts_count_as_one_where_they_always_agree() -> None:
    together = result([[1, 1, 1, 1], [0, 0, 0, 0]] * 20)
    alone = result([[1], [0]] * 20)
    assert together.interval == pytest.approx(alone.interval)
    apart = result([[1, 0, 1, 0]] * 40)
    assert apart.interval == pytest.approx(compute_wilson_interval(80, 160))
    mixed = result([[1, 1, 1, 0], [0, 1, 0, 0]] * 20)
    assert compute_wilson_interval(80, 160)[0] > mixed.interval[0] > alone.interval[0]
    sure = result([[1, 1]] * 9)
    assert sure.interval == pytest.approx(compute_wilson_interval(9, 9)) and sure.interval[0] < 0.8


def test_held_out_tasks_are_the_same_for_every_seed_and_never_trained_on() -> None:
    one, other = (
        small_components("seed=1", "recipe.name=grpo"),
        small_components("seed=2", "recipe.name=grpo"),
    )
    held = one.list_held_out_tasks(20)
    assert [t.id for t in held] == [t.id for t in other.list_held_out_tasks(20)]
    trained = {t.id for p in (one, other) for t in p.tasks(Split.TRAIN, 500, p.config.seed)}
    assert not trained & {t.id for t in held}
    assert len({t.id for t in held}) == 20
    assert [t.id for t in held[:5]] == [t.id for t in one.list_held_out_tasks(5)]


def test_an_environment_with_nothing_to_train_on_can_be_evaluated_in() -> None:
    options = {"size": "tiny", "held_out": "templates", "templates": ["admin.start_coupon"], "max_turns": 1}
    config = small_config(
        "env.name=web", "policy.model=tiny-0.3m", "agent.guide=false", "engine.max_length=1024", folder=None
    )
    config = config.model_copy(update={"env": config.env.model_copy(update={"options": options})})
    assert evaluate_run("tiny-0.3m", config, num_tasks=1).result.num_tasks == 1


def test_two_evaluations_of_the_same_weights_are_equal_and_count_what_happened() -> None:
    components = small_components("recipe.name=grpo")
    tasks = components.list_held_out_tasks(5)
    one, other = (evaluate(components, tasks, temperature=1.0, samples_per_task=3) for _ in range(2))
    assert [t.steps for t in one.trajectories] == [t.steps for t in other.trajectories]
    assert one.num_tasks == 5 and one.outcomes.shape == (5, 3)
    assert [t.task.id for t in one.trajectories[::3]] == [t.id for t in tasks]
    values = one.values()
    wins = [t.status is Status.SUCCESS for t in one.trajectories]
    assert values["success"] == values["pass@1"] == pytest.approx(np.mean(wins))
    assert values["turns"] == pytest.approx(np.mean([len(t.steps) for t in one.trajectories]))
    assert values["reward"] == pytest.approx(np.mean([t.total_reward for t in one.trajectories]))
    assert {"pass@1", "pass@2"} <= values.keys() and "pass@4" not in values
    shifted = evaluate(components, tasks, temperature=1.0, samples_per_task=3, seed=1)
    assert [t.steps for t in shifted.trajectories] != [t.steps for t in one.trajectories]


def test_an_env_that_fails_under_evaluation_is_no_result() -> None:
    from tests.runs.broken_envs import BrokenLake

    BrokenLake.num_raised = 0
    components = small_components("recipe.name=grpo", f"env.name={ENVS}:BrokenLake")
    with pytest.raises(EnvError, match="of 4 evaluation episodes failed with system errors"):
        evaluate(components, components.list_held_out_tasks(4), temperature=0.0)


@pytest.mark.parametrize(
    "extra", [(), ("policy.lora={rank=2}",), pytest.param(("policy.critic=own",), marks=pytest.mark.slow)]
)
def test_a_run_is_evaluated_by_its_best_checkpoint_with_the_runs_own_figures(
    tmp_path: Path, extra: tuple[str, ...]
) -> None:
    folder = train(small_config("train.num_updates=1", *extra, folder=tmp_path))
    report = evaluate_run(folder)
    assert report.model == str(folder / "checkpoints/best")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    evals = [entry for entry in map(json.loads, lines) if entry["kind"] == "eval"]
    best = max(evals, key=lambda entry: entry["success"])
    told = json.loads(report.to_json())
    assert told["success"] == best["success"] and told["reward"] == pytest.approx(best["reward"])
    assert f"success    {best['success']:.3f}" in report.table()


def test_a_run_without_a_checkpoint_cannot_stand_for_anything(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no whole checkpoint yet"):
        find_checkpoint(tmp_path)


def test_an_update_is_the_same_bit_for_bit_whether_or_not_an_evaluation_came_before_it(
    tmp_path: Path,
) -> None:
    def read_updates(every: int) -> list[dict[str, float]]:
        name = f"every-{every}"
        wish = ("train.num_updates=3", f"eval.every={every}", "recipe.name=steppo", "policy.critic=shared")
        folder = train(small_config(*wish, folder=tmp_path, name=name))
        return [dict(entry.values) for entry in timeless(folder) if entry.kind == "update"]

    alone, evaluated = read_updates(0), read_updates(1)
    assert len(alone) == 3
    assert evaluated == alone
    assert len({values["parity/max"] for values in alone}) > 1
