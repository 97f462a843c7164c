"""Paired differences and power."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import InputError
from stepwell.studies.paired_differences import (
    SEED_SPREAD,
    compare_pairs,
    compute_detectable_difference,
    compute_student_cdf,
    compute_student_quantile,
    pool_spread,
)


@pytest.mark.parametrize(
    ("share", "freedom", "quantile"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.975, 9, 2.2622),
        (0.975, 30, 2.0423),
        (0.8, 2, 1.0607),
        (0.95, 7, 1.8946),
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(share: float, freedom: int, quantile: float) -> None:
    assert compute_student_quantile(share, freedom) == pytest.approx(quantile, abs=1e-4)
    assert compute_student_quantile(1 - share, freedom) == pytest.approx(-quantile, abs=1e-4)


@given(st.integers(1, 200), st.floats(-50, 50))
def test_a_distribution_rises_from_0_to_1_and_is_symmetric(freedom: int, t: float) -> None:
    assert 0 <= compute_student_cdf(t, freedom) <= 1
    assert compute_student_cdf(t, freedom) + compute_student_cdf(-t, freedom) == pytest.approx(1, abs=1e-9)
    assert compute_student_cdf(t, freedom) <= compute_student_cdf(t + 0.5, freedom) + 1e-12


def test_means_by_seed_are_compared_by_the_paired_t_test() -> None:
    found = compare_pairs([[0.6], [0.7], [0.8]], [[0.5], [0.7], [0.6]])
    differences = np.array([0.1, 0.0, 0.2])
    error = differences.std(ddof=1) / math.sqrt(3)
    assert found.mean == pytest.approx(0.1) and found.error == pytest.approx(error)
    assert found.high == pytest.approx(0.1 + 4.3027 * error, abs=1e-4)
    assert not found.is_told_apart and str(found).startswith("+0.100 (")


def test_what_a_seed_or_a_task_does_to_both_methods_cancels() -> None:
    rng = np.random.default_rng(0)
    seeds, tasks = rng.normal(size=(5, 1)), rng.normal(size=(1, 40))
    theirs = seeds + tasks
    found = compare_pairs(theirs + 0.1, theirs)
    assert found.mean == pytest.approx(0.1) and found.error == pytest.approx(0.0, abs=1e-9)
    assert found.is_told_apart


def test_differences_that_vary_over_tasks_alone_or_seeds_alone_both_count() -> None:
    rng = np.random.default_rng(1)
    zeros, by_task, by_seed = np.zeros((4, 50)), rng.normal(size=(1, 50)), rng.normal(size=(4, 1))
    tasks = compare_pairs(zeros + by_task, zeros).error
    seeds = compare_pairs(zeros + by_seed, zeros).error
    both = compare_pairs(zeros + by_task + by_seed, zeros).error
    assert tasks == pytest.approx(by_task.std(ddof=1) / math.sqrt(50), rel=0.01)
    assert seeds == pytest.approx(by_seed.std(ddof=1) / 2, rel=0.01)
    assert tasks is not None and seeds is not None and both is not None and both > max(tasks, seeds)


def test_one_pair_has_no_error_and_other_shapes_are_refused() -> None:
    assert compare_pairs([[0.5]], [[0.4]]).error is None
    assert compare_pairs([[1.0, 0.0, 1.0]], [[0.0, 0.0, 1.0]]).error is not None  # one seed, three tasks
    with pytest.raises(InputError, match="same seeds and tasks"):
        compare_pairs([[0.5]], [[0.4], [0.5]])


@pytest.mark.slow
def test_intervals_of_paired_differences_cover_the_truth_as_often_as_they_promise() -> None:
    rng, hits, rounds = np.random.default_rng(2), 0, 400
    for _ in range(rounds):
        chance = np.clip(rng.uniform(size=(1, 60)) + rng.normal(0, 0.1, size=(5, 1)), 0.02, 0.98)
        ours, theirs = (rng.uniform(size=(5, 60)) < chance for _ in range(2))
        found = compare_pairs(ours.astype(float), theirs.astype(float))
        hits += found.low <= 0 <= found.high  # type: ignore[operator]
    assert hits / rounds > 0.93


def test_a_study_of_the_detectable_difference_finds_it_four_times_in_five() -> None:
    rng, rounds = np.random.default_rng(3), 600
    smallest = compute_detectable_difference(5, 200, 1, seed_spread=0.05)
    assert smallest is not None
    spread = math.sqrt(0.05**2 + 0.25 / 200)
    ours = rng.normal(0.5 + smallest, spread, size=(rounds, 5, 1))
    theirs = rng.normal(0.5, spread, size=(rounds, 5, 1))
    found = np.mean([compare_pairs(a, b).is_told_apart for a, b in zip(ours, theirs, strict=True)])
    assert 0.72 < found < 0.88


def test_more_of_anything_detects_more_and_one_seed_nothing() -> None:
    base = compute_detectable_difference(3, 128)
    assert base is not None and compute_detectable_difference(1, 128) is None
    for more in (
        compute_detectable_difference(5, 128),
        compute_detectable_difference(3, 512),
        compute_detectable_difference(3, 128, 8),
    ):
        assert more is not None and more < base


def test_the_spread_of_a_study_leaves_out_what_all_methods_of_a_seed_share() -> None:
    rng = np.random.default_rng(5)
    seeds = rng.normal(0, 0.3, size=40)
    methods = [
        {seed: 0.1 * k + shift + rng.normal(0, 0.05) for seed, shift in enumerate(seeds)} for k in range(3)
    ]
    found = pool_spread(methods)
    assert found is not None and 0.04 < found < 0.06
    assert pool_spread(methods[:1]) is None
    three_seeds = [{seed: method[seed] for seed in range(3)} for method in methods]
    assert pool_spread(three_seeds) is not None and pool_spread(three_seeds[:2]) is None  # 4 and 2 degrees


def test_the_assumed_spread_is_near_the_upper_quartile_of_our_committed_studies() -> None:
    spreads = []
    for file in sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*/results.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        groups: dict[str, dict[str, dict[int, float]]] = {}
        num_tasks: dict[str, int] = {}
        for run in content["runs"] if "num_done" in content else []:
            env = run.get("env") or run["world"]
            if run["after"] is not None and run["updates"]:
                groups.setdefault(env, {}).setdefault(run["variant"], {})[run["seed"]] = run["success_after"]
                num_tasks[env] = run["after"]["num_tasks"]
        for env, methods in groups.items():
            if (spread := pool_spread(list(methods.values()))) is not None:
                spreads.append(math.sqrt(max(spread**2 - 0.25 / num_tasks[env], 0.0)))
    assert len(spreads) >= 10
    assert float(np.quantile(spreads, 0.75)) == pytest.approx(SEED_SPREAD, abs=0.02)
