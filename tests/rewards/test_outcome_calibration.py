"""Calibration and figures of judges: what holds for any scores and labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import Status, Task, Trajectory
from stepwell.core.errors import InputError
from stepwell.rewards.outcome_model.calibration import Calibration
from stepwell.rewards.outcome_model.calibration_fit import fit_calibration
from stepwell.rewards.outcome_model.judges import combine_answers
from stepwell.rewards.outcome_model.measures import (
    compute_auc,
    find_family,
    list_reliability,
    measure_baselines,
    measure_brier,
    measure_calibration_error,
    measure_judge,
)

PAIRS = st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=60)
SHARES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def log_loss(probabilities: np.ndarray, labels: list[bool]) -> float:
    right = np.where(labels, probabilities, 1 - probabilities)
    return float(-np.log(np.maximum(right, 1e-300)).mean())


@given(PAIRS)
@settings(max_examples=examples(200))
def test_calibration_keeps_the_order_of_scores_and_stays_a_probability(
    pairs: list[tuple[float, bool]],
) -> None:
    scores, labels = [x for x, _ in pairs], [y for _, y in pairs]
    fitted = fit_calibration(scores, labels)
    ordered = fitted.convert(np.sort(scores))
    assert fitted.slope >= 0 and (np.diff(ordered) >= 0).all()
    assert ((ordered >= 0) & (ordered <= 1)).all()


@given(st.floats(0.2, 3), st.floats(-2, 2), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_the_fit_finds_the_numbers_that_made_the_labels(slope: float, shift: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, 4000)
    labels = rng.random(4000) < Calibration(slope, shift).convert(scores)
    fitted = fit_calibration(scores, labels.tolist())
    told = fitted.convert(scores)
    assert measure_calibration_error(told, labels.tolist()) < 0.06
    assert np.abs(told - Calibration(slope, shift).convert(scores)).mean() < 0.04
    raw = Calibration().convert(scores)
    assert log_loss(told, labels.tolist()) <= log_loss(raw, labels.tolist()) + 1e-3


def test_scores_that_are_upside_down_say_nothing_and_become_the_share_of_successes() -> None:
    fitted = fit_calibration([3.0, 2.0, -2.0, -3.0, -3.0], [False, False, True, True, True])
    assert fitted.slope == 0.0
    assert fitted.convert([5.0, -5.0]) == pytest.approx([3.5 / 6] * 2)


@given(SHARES)
def test_bins_hold_every_prediction_and_errors_are_bounded(pairs: list[tuple[float, bool]]) -> None:
    p, y = [x for x, _ in pairs], [label for _, label in pairs]
    bins = list_reliability(p, y)
    assert sum(one.count for one in bins) == len(p)
    assert all(one.low <= one.predicted <= one.high for one in bins)
    assert 0 <= measure_calibration_error(p, y) <= 1 and 0 <= measure_brier(p, y) <= 1


def test_a_judge_that_is_always_right_and_sure_has_no_error() -> None:
    score = measure_judge([1.0, 0.0, 1.0], [True, False, True])
    assert (score.accuracy, score.f1, score.auc, score.calibration_error, score.brier) == (1, 1, 1, 0, 0)


def test_figures_of_a_worked_example() -> None:
    score = measure_judge([0.9, 0.6, 0.4, 0.2], [True, False, True, False])
    assert (score.accuracy, score.precision, score.recall, score.f1, score.auc) == (0.5, 0.5, 0.5, 0.5, 0.75)


@given(SHARES)
def test_the_area_under_the_curve_counts_pairs(pairs: list[tuple[float, bool]]) -> None:
    won = [p for p, y in pairs if y]
    lost = [p for p, y in pairs if not y]
    found = compute_auc([p for p, _ in pairs], [y for _, y in pairs])
    if not won or not lost:
        assert found is None
    else:
        expected = np.mean([(a > b) + 0.5 * (a == b) for a in won for b in lost])
        assert found == pytest.approx(expected)


def test_trivial_judges_and_families() -> None:
    def played(family: str, status: Status) -> Trajectory:
        return Trajectory(Task("house", {"goal": {"family": family}}), [], status)

    shown = [played("cool", Status.SUCCESS), played("heat", Status.FAILURE), played("heat", Status.FAILURE)]
    scores = measure_baselines(shown, [True, False, False])
    assert scores["majority"].accuracy == pytest.approx(2 / 3)
    assert scores["always_yes"].recall == 1 and scores["always_yes"].precision == pytest.approx(1 / 3)
    assert find_family(shown[0].task) == "house/cool" and find_family(Task("lake", {"n": 1})) == "lake"


def test_answers_are_combined_by_mean_or_majority_and_silence_is_no_answer() -> None:
    assert combine_answers([0.2, None, 0.6], "mean") == pytest.approx(0.4)
    assert combine_answers([0.51, 0.52, 0.0], "majority") == pytest.approx(2 / 3)
    assert combine_answers([0.9, 0.2], "majority") == 0.5
    assert combine_answers([0.6, 0.1], "majority") < 0.5  # type: ignore[operator]
    assert combine_answers([None, None], "mean") is None


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="as many values as labels"):
        fit_calibration([1.0], [True, False])
    with pytest.raises(InputError, match="slope must be >= 0"):
        Calibration(-1.0)
