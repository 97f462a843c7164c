"""Matching of described with true states: the truth scores 1, what contradicts it 0, all within [0, 1]."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import StateForm
from stepwell.rewards import match_state
from stepwell.rewards.state_match import parse_positions, parse_relations

WORDS, GRID, DICT = StateForm.NATURAL_LANGUAGE, StateForm.SYMBOLIC, StateForm.STRUCTURED
THINGS = ("The goal", "Hole 1", "Hole 2", "Hole 3")
PLACES = (
    *("directly above", "directly below", "directly left of", "directly right of", "above and left of"),
    *("above and right of", "below and left of", "below and right of", "at the same place as"),
)
TRUTH = "The goal is directly above the player. Hole 1 is below and left of the player."
LAKE = '{"player": [1, 2], "goal": [0, 0], "holes": [[3, 3], [2, 0]], "size": [4, 4]}'

true_words = st.lists(st.sampled_from(PLACES), min_size=1, max_size=4).map(
    lambda places: " ".join(
        f"{thing} is {place} the player." for thing, place in zip(THINGS, places, strict=False)
    )
)
grids = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.text("_OGP", min_size=width, max_size=width), min_size=1, max_size=5)
)
cells = st.tuples(st.integers(0, 9), st.integers(0, 9))
lakes = st.builds(
    lambda player, holes: f'{{"player": {list(player)}, "holes": {[list(hole) for hole in holes]}}}',
    cells,
    st.lists(cells, max_size=4, unique=True),
)


@given(true_words)
def test_true_words_score_one_in_any_order_and_seen_from_either_side(truth: str) -> None:
    sentences = [part + "." for part in truth.split(".") if part.strip()]
    assert match_state(WORDS, truth, truth) == 1.0
    assert match_state(WORDS, "\n".join(reversed(sentences)), truth) == 1.0


@given(grids)
def test_the_true_grid_scores_one_whatever_the_blanks(rows: list[str]) -> None:
    truth = "\n".join(rows)
    assert match_state(GRID, truth, truth) == 1.0
    assert match_state(GRID, "\n" + "\n".join(" ".join(row) + " " for row in rows) + "\n\n", truth) == 1.0


@given(grids, st.data())
def test_every_wrong_cell_costs_its_share(rows: list[str], data: st.DataObject) -> None:
    width, count = len(rows[0]), len(rows[0]) * len(rows)
    wrong = data.draw(st.sets(st.integers(0, count - 1)))
    flat = "".join("?" if at in wrong else cell for at, cell in enumerate("".join(rows)))
    said = "\n".join(flat[at : at + width] for at in range(0, count, width))
    assert match_state(GRID, said, "\n".join(rows)) == pytest.approx(1 - len(wrong) / count)


@given(lakes)
def test_true_positions_score_one(truth: str) -> None:
    assert match_state(DICT, truth, truth) == 1.0
    assert match_state(DICT, truth.replace('"', "").replace("[", "(").replace("]", ")"), truth) == 1.0


@given(st.sampled_from(list(StateForm)), st.text(max_size=80), st.text(max_size=80))
def test_any_two_texts_score_between_zero_and_one(form: StateForm, said: str, truth: str) -> None:
    assert 0.0 <= match_state(form, said, truth) <= 1.0
    assert match_state(form, truth, truth) == 1.0


@given(true_words, lakes, grids)
def test_saying_nothing_scores_zero(words: str, lake: str, rows: list[str]) -> None:
    assert match_state(WORDS, "", words) == match_state(DICT, "", lake) == 0.0
    assert match_state(GRID, "", "\n".join(rows)) == 0.0


@pytest.mark.parametrize(
    ("form", "truth"), [(WORDS, TRUTH), (DICT, LAKE), (GRID, "PO_G\nO___\n__O_\nO___")], ids=str
)
def test_a_shuffled_truth_scores_less(form: StateForm, truth: str) -> None:
    pieces = truth.split() if form is WORDS else list(truth)
    for seed in range(20):
        shuffled = random.Random(seed).sample(pieces, len(pieces))
        joined = " ".join(shuffled) if form is WORDS else "".join(shuffled)
        assert match_state(form, joined, truth) < 1.0


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("The player is directly below the goal. The player is above and right of hole 1.", 1.0),
        ("goal is above and at the same column as me, hole1 is below and on the left side of me", 1.0),
        ("The target is above and at the same column as the player", 2 * 2 / (2 + 4)),
        ("The goal is above the player and hole 1 is below the player", 2 * 2 / (2 + 4)),
        ("The goal is directly below the player. Hole 1 is above and right of the player.", 2 / (4 + 4)),
        ("The goal is below the player. Hole 1 is above and right of the player.", 0.0),
        ("The goal is far away. I am happy.", 0.0),
        (TRUTH + " The goal is below, left and right of the player.", 2 * 4 / (7 + 4)),
    ],
)
def test_words_are_scored_relation_by_relation(said: str, score: float) -> None:
    assert match_state(WORDS, said, TRUTH) == pytest.approx(score)


def test_being_on_a_thing_is_being_at_its_place() -> None:
    assert parse_relations("The player will be on the goal.") == parse_relations(
        "The goal is at the same place as you."
    )


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("{player_position: (1, 2), goal: (0,0), holes: [(2, 0), (3, 3)], size: (4, 4)}", 1.0),
        ('{"player": [1, 2]}', 2 * 1 / (1 + 5)),
        ('{"player": [2, 1], "goal": [0, 0]}', 2 * 1 / (2 + 5)),
        ('{"goal": [1, 2], "player": [0, 0]}', 0.0),
        ("player = [1, 2]; holes = [[3, 3]", 2 * 2 / (2 + 5)),
    ],
)
def test_positions_are_scored_one_by_one(said: str, score: float) -> None:
    assert match_state(DICT, said, LAKE) == pytest.approx(score)


def test_an_empty_list_is_a_fact_too() -> None:
    assert parse_positions('{"holes": []}') == {("holes", "")}
    assert match_state(DICT, '{"holes": []}', '{"holes": []}') == 1.0
    assert match_state(DICT, '{"holes": [[1, 1]]}', '{"holes": []}') == 0.0


def test_a_grid_of_another_shape_scores_zero() -> None:
    assert match_state(GRID, "__\n__", "___\n___") == 0.0
    assert match_state(GRID, "___", "___\n___") == 0.0


def test_a_truth_in_words_of_its_own_is_compared_by_words() -> None:
    assert match_state(WORDS, "You see a red lamp", "a red lamp") == pytest.approx(2 * 3 / (5 + 3))
