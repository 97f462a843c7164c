"""The score of a purchase: WebShop's formula, part by part, with values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.products import Option, Product
from stepwell.envs.shop.score import PurchaseScore, has_attribute, score_purchase, score_type

GOAL = ShopGoal("", "hiking boots", ("hiking", "boots"), ("Shoes", "Outdoor", "hiking boots"),
            ("vegan", "waterproof"), (("size", "x-large"), ("color", "navy")), 5000)  # fmt: skip
SIZE, COLOR = Option("size", ("x-large", "xx-large"), (0, 300)), Option("color", ("navy", "red"))
BOOTS = Product("A", "Fast hiking boots", "hiking boots", ("Shoes", "Outdoor", "hiking boots"), 4900,
                ("waterproof",), (SIZE, COLOR), ("Truly VEGAN, all of it.",))  # fmt: skip
RIGHT = {"size": "x-large", "color": "navy"}


def test_a_purchase_that_is_all_that_was_asked_for_scores_one() -> None:
    assert score_purchase(GOAL, BOOTS, RIGHT) == PurchaseScore(1.0, 1.0, 2, 2, True)
    assert score_purchase(GOAL, BOOTS, RIGHT).is_success


@pytest.mark.parametrize(
    ("chosen", "total"),
    [
        ({}, 3 / 5),  # two attributes and the price, of two, two and one
        ({"size": "x-large"}, 4 / 5),
        ({"size": "x-large", "color": "red"}, 4 / 5),
        ({"size": "xx-large", "color": "navy"}, 3 / 5),  # and 52 dollars are too many
    ],
)
def test_each_value_counts_as_much_as_each_attribute_and_the_price(
    chosen: dict[str, str], total: float
) -> None:
    assert score_purchase(GOAL, BOOTS, chosen).total == pytest.approx(total)
    assert not score_purchase(GOAL, BOOTS, chosen).is_success


def test_a_price_at_the_limit_is_within_it_and_a_cent_more_is_not() -> None:
    at, above = replace(BOOTS, price=5000), replace(BOOTS, price=5001)
    assert score_purchase(GOAL, at, RIGHT).is_within_limit
    assert score_purchase(GOAL, above, RIGHT) == PurchaseScore(4 / 5, 1.0, 2, 2, False)


def test_a_larger_size_is_another_size() -> None:
    assert score_purchase(GOAL, BOOTS, {"size": "xx-large"}).num_options == 0
    spaced = replace(GOAL, options=(("", "X Large"),))
    assert score_purchase(spaced, BOOTS, RIGHT).num_options == 1


def test_attributes_are_had_if_listed_or_said_word_for_word() -> None:
    assert has_attribute(BOOTS, "Waterproof") and has_attribute(BOOTS, "vegan")
    assert has_attribute(BOOTS, "hiking boots") and not has_attribute(BOOTS, "boots hiking")
    assert not has_attribute(BOOTS, "water") and not has_attribute(BOOTS, "veg")


WIDE = ShopGoal("", "q", tuple(f"w{i}" for i in range(20)), ("a", "b"), (), (), 10**9)


@pytest.mark.parametrize(
    ("title", "kind", "category", "expected"),
    [
        ("other", "q", ("a", "b"), 0.0),  # no word of it, wherever it is shelved
        ("w0", "q", ("a", "b"), 0.1),  # one of twenty
        ("w0 w1", "z", (), 0.5),  # a tenth
        ("w0 w1 w2 w3", "z", ("a",), 0.5),  # a fifth is not more than a fifth
        ("w0 w1 w2 w3", "q", (), 1.0),  # the same kind
        ("w0 w1 w2 w3", "z", ("b", "a"), 1.0),  # two shelves
        ("w0 w1 w2 w3 w4", "z", (), 1.0),  # a quarter
    ],
)
def test_the_kind_of_thing_is_judged_by_title_kind_and_shelves(
    title: str, kind: str, category: tuple[str, ...], expected: float
) -> None:
    assert score_type(WIDE, Product("A", title, kind, category, 1)) == expected


def test_the_wrong_kind_of_thing_takes_its_part_of_everything() -> None:
    product = replace(BOOTS, title="w0 w1 vegan waterproof", kind="z", category=())
    goal = replace(WIDE, attributes=("vegan", "soft"), limit=1)
    assert score_purchase(goal, product, {}).total == pytest.approx(0.5 * 1 / 3)


values = st.sampled_from(["x-large", "xx-large", "navy", "red"])


@given(
    st.lists(values, max_size=3),
    st.lists(st.sampled_from(["vegan", "waterproof", "soft"])),
    st.integers(0, 9000),
)
def test_scores_lie_between_zero_and_one_and_are_one_only_if_every_part_is_whole(
    wanted: list[str], attributes: list[str], limit: int
) -> None:
    goal = replace(GOAL, options=tuple(("", v) for v in wanted), attributes=tuple(attributes), limit=limit)
    score = score_purchase(goal, BOOTS, RIGHT)
    whole = score.num_options == len(wanted) and score.num_attributes == len(attributes)
    assert 0.0 <= score.total <= 1.0
    assert score.is_success == (whole and score.is_within_limit and score.type == 1.0)
