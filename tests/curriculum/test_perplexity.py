"""Which steps are replayed: a band of perplexity, an even draw, never more than asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.curriculum import PerplexityBand, ScoredTrajectory, choose_steps, compute_perplexity
from stepwell.curriculum.perplexity import HISTOGRAM_EDGES, count_perplexities

VALUES = st.lists(st.floats(1.0, 5.0), min_size=1, max_size=6)
SCORED = st.lists(VALUES, max_size=8).map(
    lambda rows: [ScoredTrajectory(f"t{i}", tuple(row)) for i, row in enumerate(rows)]
)
BANDS = st.tuples(st.floats(1.0, 3.0), st.one_of(st.just(math.inf), st.floats(0.0, 2.0))).map(
    lambda ends: PerplexityBand(ends[0], ends[0] + ends[1])
)


@given(SCORED, BANDS, st.integers(0, 30), st.integers(0, 3))
def test_chosen_steps_lie_in_the_band_and_are_as_many_as_fit(
    scored: list[ScoredTrajectory], band: PerplexityBand, max_steps: int, seed: int
) -> None:
    chosen = choose_steps(scored, band, max_steps, np.random.default_rng(seed))
    by_id = {each.id: each.perplexities for each in scored}
    picked = [
        value for id, mask in chosen.items() for value, flag in zip(by_id[id], mask, strict=True) if flag
    ]
    inside = [value for each in scored for value in each.perplexities if band.contains(value)]
    assert len(picked) == min(max_steps, len(inside))
    assert all(band.contains(value) for value in picked)
    assert all(any(mask) for mask in chosen.values())
    assert chosen == choose_steps(scored, band, max_steps, np.random.default_rng(seed))


def test_every_step_in_the_band_is_drawn_as_often() -> None:
    scored = [ScoredTrajectory(f"t{i}", (1.5,)) for i in range(6)]
    drawn = [
        id
        for seed in range(600)
        for id in choose_steps(scored, PerplexityBand(1), 2, np.random.default_rng(seed))
    ]
    counts = [drawn.count(each.id) for each in scored]
    assert sum(counts) == 1200 and all(150 < count < 250 for count in counts)


@given(st.lists(st.floats(-5.0, 0.0), min_size=1, max_size=9))
def test_perplexity_is_the_inverse_geometric_mean_of_the_probabilities(logprobs: list[float]) -> None:
    found = compute_perplexity(np.array(logprobs, dtype=np.float32))
    assert found >= 1.0
    assert found == pytest.approx(math.prod(math.exp(x) for x in logprobs) ** (-1 / len(logprobs)), rel=1e-5)


def test_the_papers_band_is_an_action_of_probability_half_to_nineteen_twentieths() -> None:
    band = PerplexityBand(1 / 0.95, 1 / 0.5)
    probabilities = (0.99, 0.95, 0.7, 0.5, 0.49)
    assert [band.contains(1 / p) for p in probabilities] == [False, True, True, True, False]


@given(st.lists(st.floats(1.0, 100.0), max_size=20))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    counts = count_perplexities(values)
    assert len(counts) == len(HISTOGRAM_EDGES) and sum(counts) == len(values)
