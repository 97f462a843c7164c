"""Generated products: the same everywhere, true to their own texts, priced by what they are."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import ConfigError, EncodingError, InputError
from stepwell.core.ids import hash_content
from stepwell.envs.shop.products.generator import generate_products
from stepwell.envs.shop.products.product import Option, Product, format_dollars, list_texts
from stepwell.envs.shop.products.vocabulary import load_vocabulary, strip_article

FULL, TINY = load_vocabulary("full"), load_vocabulary("tiny")


@cache
def some() -> list[Product]:
    return list(generate_products(FULL, 0, 3000))


def test_the_same_seed_makes_the_same_products_on_every_machine() -> None:
    assert hash_content([product.to_json() for product in some()[:500]]) == "c673501602f5451c4d359cd606a9492e"
    tiny = [product.to_json() for product in generate_products(TINY, 0, 500)]
    assert hash_content(tiny) == "329c3cb09f266619e5e9454c4d3285d3"


def test_other_seeds_make_other_products() -> None:
    assert not {p.title for p in generate_products(FULL, 1, 200)} & {p.title for p in some()}


def test_a_shorter_catalogue_is_the_beginning_of_a_longer_one() -> None:
    assert list(generate_products(FULL, 0, 50)) == some()[:50]
    assert list(islice(generate_products(FULL, 0, 10**9), 50)) == some()[:50]


def test_ids_and_titles_are_unique() -> None:
    assert len({p.id for p in some()}) == len({p.title for p in some()}) == len(some())
    assert len({p.id for p in generate_products(TINY, 0, 676)}) == 676


def test_more_products_than_there_are_short_ids_are_refused() -> None:
    with pytest.raises(InputError, match="num_products: with short ids there are at most 676, got 677"):
        list(generate_products(TINY, 0, 677))


def test_texts_of_a_product_name_its_own_attributes_and_no_others() -> None:
    known = {kind.name: {strip_article(phrase) for phrase in kind.phrases} for kind in FULL.kinds}
    for product in some()[:800]:
        text = " . ".join(list_texts(product)).lower()
        said = {a for a in known[product.kind] if re.search(rf"\b{re.escape(a)}\b", text)}
        assert said == set(product.attributes), product


def test_no_product_has_two_attributes_that_exclude_each_other() -> None:
    kinds = {kind.name: kind for kind in FULL.kinds}
    for product in some():
        for rivals in kinds[product.kind].rivals:
            assert len({strip_article(phrase) for phrase in rivals} & set(product.attributes)) <= 1


def test_prices_lie_between_the_bounds_of_their_kind() -> None:
    kinds = {kind.name: kind for kind in FULL.kinds}
    for product in some():
        kind = kinds[product.kind]
        assert (kind.low - 1) * 100 <= product.price <= kind.high * 100


def test_values_of_all_options_of_a_product_are_distinct_and_run_in_order() -> None:
    for product in some():
        values = [value for option in product.options for value in option.values]
        assert len(set(values)) == len(values) >= 2
        for option in product.options:
            assert list(option.extras) == sorted(option.extras)


def test_every_kind_is_on_sale() -> None:
    assert {product.kind for product in some()} == {kind.name for kind in FULL.kinds}
    assert len(FULL.kinds) == 181


def test_a_price_adds_what_the_chosen_values_cost() -> None:
    option = Option("pack", ("1 pack", "2 pack"), (0, 350))
    product = Product("B1", "Tea", "tea", (), 499, options=(option, Option("flavor", ("mint",))))
    assert product.compute_price({}) == product.compute_price({"pack": "1 pack", "flavor": "mint"}) == 499
    assert product.compute_price({"pack": "2 pack"}) == 849


def test_money_is_written_with_cents_only_where_there_are_any() -> None:
    assert [format_dollars(cents) for cents in (0, 5, 100, 1999, 120050)] == [
        "$0",
        "$0.05",
        "$1",
        "$19.99",
        "$1200.50",
    ]


texts = st.text(max_size=20)


@given(
    texts, texts, st.lists(texts, max_size=3), st.integers(0, 10**9), st.lists(texts, min_size=1, max_size=3)
)
def test_a_product_comes_back_from_json(
    title: str, kind: str, attributes: list[str], price: int, values: list[str]
) -> None:
    option = Option("color", tuple(values), tuple(range(len(values))))
    product = Product("x", title, kind, (kind, title), price, tuple(attributes), (option,), (title,), kind)
    assert Product.from_json(product.to_json()) == product


@pytest.mark.parametrize("text", ["", "{}", "[1,2]", '["a"]', "null"])
def test_what_is_no_product_is_refused(text: str) -> None:
    with pytest.raises(EncodingError, match="a product cannot be read"):
        Product.from_json(text)


def test_a_vocabulary_that_does_not_ship_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="there is no vocabulary 'huge'; there are full, tiny"):
        load_vocabulary("huge")
