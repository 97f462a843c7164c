"""The product store: what searches find and in which order, whatever is typed; damage is seen."""

from __future__ import annotations

import copy
import os
import pickle
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import EncodingError, EnvError
from stepwell.envs.shop.products import Option, Product, Store, open_generated_catalogue
from stepwell.envs.shop.products.query import MAX_WORD_CHARS, MAX_WORDS, match_all, split_words
from stepwell.envs.shop.products.store import MAX_RESULTS, open_store, write_store


def product(number: int, title: str, *attributes: str, kind: str = "thing", price: int = 100) -> Product:
    return Product(
        f"P{number}", title, kind, ("Shelf", kind), price, attributes, (Option("color", ("mauve",)),)
    )


SHELF = [
    product(1, "Red running shoes", "waterproof", kind="shoes"),
    product(2, "Blue running shoes", "vegan", kind="shoes"),
    product(3, "Red hat", "waterproof", kind="hat"),
    product(4, "Red red red hat", kind="hat"),
    product(5, 'O\'Neil "Drop" <b>Café</b> table; --', kind="table"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("shelf") / "shelf.db"
    write_store(path, SHELF, ['{"product": "P1"}'])
    return Store(path)


def found(store: Store, text: str) -> list[str]:
    return [store.product(number).id for number in store.search(text).numbers]


def test_products_come_back_as_they_were_written(store: Store) -> None:
    assert [store.product(number) for number in range(1, 6)] == SHELF
    assert (store.num_products, store.num_goals, store.goal(0)) == (5, 1, '{"product": "P1"}')


def test_what_has_all_the_words_comes_first_then_what_has_the_rarer(store: Store) -> None:
    # vegan 1, shoes 2, red 3: all three nowhere; vegan and shoes: P2; vegan: P2
    assert found(store, "red vegan shoes") == ["P2"]
    # waterproof 2 (P1, P3), hat 2 (P3, P4), red 3; "hat" sorts before "waterproof" and is kept last
    assert found(store, "red waterproof hat") == ["P3", "P4"]


def test_words_are_found_in_every_field_and_in_other_forms(store: Store) -> None:
    assert found(store, "shoe") == found(store, "SHOES") and set(found(store, "shoe")) == {"P1", "P2"}
    assert set(found(store, "mauve")) == {"P1", "P2", "P3", "P4", "P5"}
    assert found(store, "cafe") == found(store, "CAFÉ") == ["P5"]


def test_words_that_no_product_has_are_left_out(store: Store) -> None:
    assert found(store, "zzz vegan qqq") == ["P2"]
    assert found(store, "zzz") == found(store, "") == found(store, "!?*") == []


def test_ties_keep_the_order_of_the_shelf(tmp_path: Path) -> None:
    write_store(tmp_path / "s.db", [product(number, "same title") for number in range(80)])
    numbers = Store(tmp_path / "s.db").search("same title").numbers
    assert numbers == tuple(range(1, MAX_RESULTS + 1))


def test_ids_are_found_in_large_and_small_letters_and_not_otherwise(store: Store) -> None:
    assert store.number_of("p3") == store.number_of("P3") == 3
    for name in ("", "P9", "P3' OR '1'='1", "%", "P_", "\ud800", "\x00"):
        assert store.number_of(name) is None


def test_products_of_a_kind_are_listed_in_order(store: Store) -> None:
    assert [p.id for p in store.of_kind("hat")] == ["P3", "P4"]
    assert list(store.of_kind("hat' --")) == []


NASTY = [
    '"', '""', "'", "*", "red*", "-red", "^red", "red AND", "AND", "OR", "NOT red", "NEAR(red hat)",
    "title:red", "{title kind}:red", "red + hat", "(red", "red)", "'; DROP TABLE products; --", "\x00red",
    "red\ud800", "é́", "²", "𝔯𝔢𝔡", "🙂", "ﬁ", "a_b", "x" * 100_000, "red " * 10_000, "١٢٣",
    "\\", "%", "?", ":1",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_signs_of_the_query_language_mean_nothing(store: Store, text: str) -> None:
    before = store.path.read_bytes()
    assert set(found(store, text)) <= {p.id for p in SHELF}
    assert store.path.read_bytes() == before


def test_a_query_with_signs_finds_what_its_words_find(store: Store) -> None:
    for text in ('"red" AND "hat"', "red* -hat", "NEAR(red, hat)", "red^hat", "title:red+hat"):
        plain = " ".join(word for word in split_words(text) if word in ("red", "hat"))
        assert found(store, text) == found(store, plain), text


@given(st.text(max_size=300))
def test_any_text_can_be_searched_for(text: str) -> None:
    store = open_generated_catalogue("tiny", 0, 60)
    numbers = store.search(text).numbers
    assert len(set(numbers)) == len(numbers) <= MAX_RESULTS
    assert all(1 <= number <= 60 for number in numbers)


@given(st.text(max_size=500))
def test_words_are_few_short_and_quoted(text: str) -> None:
    words = split_words(text)
    assert len(words) <= MAX_WORDS and len(set(words)) == len(words)
    # case folding may lengthen a letter (ß becomes ss, three at most)
    assert all(word and '"' not in word and len(word) <= 3 * MAX_WORD_CHARS for word in words)
    expression = match_all(words)
    assert expression.count('"') == 2 * len(words)


def test_the_query_language_parses_whatever_the_builder_makes() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(a)")

    @given(st.text(min_size=1, max_size=60))
    def parses(text: str) -> None:
        words = split_words(text)
        if words:
            connection.execute("SELECT rowid FROM t WHERE t MATCH ?", (match_all(words),)).fetchall()

    parses()
    connection.close()


def test_copies_and_threads_share_a_store(store: Store) -> None:
    assert copy.deepcopy(store) is store
    assert pickle.loads(pickle.dumps(store)).digest == store.digest
    seen: list[list[str]] = []
    threads = [threading.Thread(target=lambda: seen.append(found(store, "red hat x"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["P3", "P4"]] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_opens_a_connection_of_its_own(store: Store) -> None:
    mine = store._connect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        differs = store._connect() is not mine and found(store, "vegan thing") == ["P2"]
        os.write(writer, b"y" if differs else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"


def test_a_catalogue_is_built_once_and_named_by_what_it_is_made_of(tmp_path: Path) -> None:
    one = open_generated_catalogue("tiny", 0, 50, root=tmp_path)
    stamp = one.path.stat().st_mtime_ns
    assert open_generated_catalogue("tiny", 0, 50, root=tmp_path).path.stat().st_mtime_ns == stamp
    others = [
        open_generated_catalogue("tiny", 1, 50, tmp_path),
        open_generated_catalogue("tiny", 0, 51, tmp_path),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 3
    assert len(list((tmp_path / "products").glob("*.db"))) == 3


def test_a_damaged_catalogue_is_built_again(tmp_path: Path) -> None:
    path = open_generated_catalogue("tiny", 0, 40, root=tmp_path).path
    path.write_bytes(b"no database at all" * 100)
    open_store.cache_clear()
    with pytest.warns(UserWarning, match="is damaged"):
        again = open_generated_catalogue("tiny", 0, 40, root=tmp_path)
    assert again.num_products == 40


def test_a_store_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "s.db", SHELF)
    with sqlite3.connect(tmp_path / "s.db") as connection:
        connection.execute("DELETE FROM products WHERE number = 5")
    connection.close()
    with pytest.raises(EncodingError, match="incomplete"):
        Store(tmp_path / "s.db")


def test_a_store_that_breaks_under_an_episode_is_the_systems_failure(tmp_path: Path) -> None:
    write_store(tmp_path / "s.db", SHELF)
    store = Store(tmp_path / "s.db")
    store._connect().close()
    with pytest.raises(EnvError, match="cannot be read"):
        store.search("red")
