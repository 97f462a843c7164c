"""Search: scores by hand, orders that repeat, and queries that mean nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import ConfigError, InputError
from stepwell.envs.retrieval import Document, Hit, SearchIndex
from stepwell.envs.retrieval.bm25 import K1, B, WordIndex
from stepwell.envs.retrieval.dense import VectorIndex
from stepwell.envs.retrieval.embedder import load_minilm
from stepwell.envs.retrieval.ranking import find_best, fuse_rankings
from stepwell.envs.retrieval.text import MAX_QUERY_CHARS, MAX_QUERY_WORDS, split_query, split_words, to_plain

CITIES = [
    Document("lyon", "Lyon", "Lyon is a city in France."),
    Document("paris", "Paris", "Paris is the capital of France."),
    Document("oslo", "Oslo", "Oslo is the capital of Norway."),
    Document("iron", "Iron", "Iron is a metal with the symbol Fe."),
]
VOCABULARY = st.sampled_from(["ab", "cd", "ef", "gh", "ij"])
TEXTS = st.lists(st.lists(VOCABULARY, max_size=6).map(" ".join), min_size=1, max_size=8)


def direct_bm25(texts: list[str], query: str) -> list[float]:
    """The formula, document by document."""
    bags = [split_words(text) for text in texts]
    mean = max(sum(map(len, bags)) / len(bags), 1.0)
    scores = []
    for bag in bags:
        total = 0.0
        for word in dict.fromkeys(split_words(query)):
            holding = sum(word in other for other in bags)
            idf = math.log(1 + (len(bags) - holding + 0.5) / (holding + 0.5))
            times = bag.count(word)
            total += idf * times / (times + K1 * (1 - B + B * len(bag) / mean))
        scores.append(total)
    return scores


@given(TEXTS, st.lists(VOCABULARY, max_size=4).map(" ".join))
def test_bm25_scores_are_those_of_the_formula(texts: list[str], query: str) -> None:
    np.testing.assert_allclose(WordIndex(texts).score_documents(query), direct_bm25(texts, query), rtol=1e-5)


def test_bm25_of_one_word_by_hand() -> None:
    scores = WordIndex(["red red fish", "blue", "green fish here"]).score_documents("red")
    fullness = 1.2 * (0.25 + 0.75 * 3 / (7 / 3))
    assert scores.tolist() == pytest.approx([math.log(1 + 2.5 / 1.5) * 2 / (2 + fullness), 0, 0], rel=1e-6)


def test_words_lose_case_accents_and_marks_and_keep_other_scripts() -> None:
    assert split_words("São-Paulo's 2nd_ÉCOLE (Straße)") == ["sao", "paulo", "s", "2nd", "ecole", "strasse"]
    assert split_words("東京 Москва ℌello ﬁn") == ["東京", "москва", "hello", "fin"]
    assert split_words("!? *:^\"'()--") == []


def test_titles_are_searched_as_texts_are() -> None:
    index = SearchIndex.build([Document("1", "Alpha", "first"), Document("2", "Beta", "second")])
    assert [hit.id for hit in index.search("beta", 5)] == ["2"]
    assert index["2"].text == "second"
    assert "1" in index
    assert "3" not in index


def test_the_passage_of_a_thing_comes_before_shorter_ones_that_name_it() -> None:
    own = Document(
        "own", "Brazil (country)", "Brazil is a country whose capital, area and domain are told here."
    )
    others = [Document(str(number), f"Town {number}", "a town of Brazil") for number in range(20)]
    assert SearchIndex.build([*others, own]).search("Brazil", 1)[0].id == "own"


@given(st.text())
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert to_plain(to_plain(text)) == to_plain(text)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 35))
def test_the_best_are_those_of_a_full_sort_and_ties_go_to_the_earlier(values: list[int], k: int) -> None:
    scores = np.array(values, np.float64)
    expected = sorted(range(len(values)), key=lambda place: (-values[place], place))[:k]
    assert find_best(scores, k).tolist() == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 1_500), st.integers(1, 60), st.integers(1, 50))
def test_the_best_of_many_are_those_of_a_full_sort(seed: int, count: int, k: int, spread: int) -> None:
    scores = np.random.default_rng(seed).integers(0, spread, count).astype(np.float64)
    expected = sorted(range(count), key=lambda place: (-scores[place], place))[:k]
    assert find_best(scores, k).tolist() == expected


def test_equal_documents_come_in_their_order() -> None:
    documents = [Document(str(number), "t", "same words") for number in range(9)]
    hits = SearchIndex.build(documents).search("same", 4)
    assert [hit.id for hit in hits] == ["0", "1", "2", "3"]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]


def test_reciprocal_ranks_by_hand() -> None:
    ranked = fuse_rankings([np.array([7, 3, 5]), np.array([3, 9])])
    assert [place for place, _ in ranked] == [3, 7, 9, 5]
    assert [score for _, score in ranked] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63])


def test_equal_sums_of_reciprocal_ranks_go_to_the_earlier_place() -> None:
    assert [place for place, _ in fuse_rankings([np.array([8, 2]), np.array([2, 8])])] == [2, 8]


@given(st.text(max_size=60))
def test_any_query_finds_only_documents_that_share_a_word_with_it(query: str) -> None:
    index = SearchIndex.build(CITIES)
    for hit in index.search(query, 10):
        assert set(split_words(index[hit.id].searched)) & set(split_query(query))
        assert hit.score > 0


@pytest.mark.parametrize(
    "query", ["", "  \n", '"', "'; DROP TABLE passages; --", "title:*", "AND OR NEAR(", "\ud800"]
)
def test_marks_of_query_languages_mean_nothing(query: str) -> None:
    assert SearchIndex.build(CITIES).search(query, 3) == []


def test_quoted_words_are_words() -> None:
    index = SearchIndex.build(CITIES)
    assert index.search('"norway" AND -title:*', 2) == index.search("norway and title", 2)
    assert index.search('"norway"*', 2)[0].id == "oslo"


def test_huge_queries_are_read_up_to_a_bound() -> None:
    assert split_query("norway " + "x" * 10**6) == ["norway", "x" * (MAX_QUERY_CHARS - 7)]
    assert len(split_query(" ".join(map(str, range(10_000))))) == MAX_QUERY_WORDS
    assert SearchIndex.build(CITIES).search("norway " * 100_000, 1)[0].id == "oslo"


def test_what_no_index_can_be_made_of_is_refused() -> None:
    with pytest.raises(InputError, match="at least one document"):
        SearchIndex.build([])
    with pytest.raises(InputError, match="distinct ids"):
        SearchIndex.build([CITIES[0], CITIES[0]])
    with pytest.raises(ConfigError, match="known: bm25, dense, hybrid"):
        SearchIndex.build(CITIES, "sparse")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="k must be at least 1"):
        SearchIndex.build(CITIES).search("iron", 0)
    with pytest.raises(InputError, match="no document 'rome'"):
        SearchIndex.build(CITIES)["rome"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vectors")


@pytest.fixture(scope="module")
def dense(cache: Path) -> SearchIndex:
    return SearchIndex.build(CITIES, "dense", cache)


def test_dense_search_finds_by_meaning_what_shares_no_word(dense: SearchIndex) -> None:
    assert SearchIndex.build(CITIES).search("chemical elements", 1) == []
    assert dense.search("chemical elements", 1)[0].id == "iron"
    assert dense.search("Scandinavian seat", 1)[0].id == "oslo"
    assert dense.search(" ", 3) == []


def test_vectors_are_unit_and_do_not_depend_on_their_batch() -> None:
    texts = ["iron", "a much longer text about iron and steel " * 5, "東京 \ud800"]
    together = load_minilm().encode(texts)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(load_minilm().encode([text])[0], vector, atol=1e-5)


def test_vectors_are_kept_by_content_and_a_damaged_file_is_built_again(
    cache: Path, dense: SearchIndex
) -> None:
    (kept,) = (cache / "embeddings").glob("*.npy")
    before = kept.read_bytes()
    assert np.load(kept).shape == (4, 384)
    kept.write_bytes(before[: len(before) // 2])
    with pytest.warns(UserWarning, match="damaged"):
        again = VectorIndex(CITIES, load_minilm(), cache)
    assert kept.read_bytes() == before
    assert again.search("metal", 4)[0] == (3, dense.search("metal", 4)[0].score)
    VectorIndex(CITIES[:2], load_minilm(), cache)
    assert len(list((cache / "embeddings").glob("*.npy"))) == 2


def test_hybrid_search_joins_both_orders_by_reciprocal_rank(cache: Path, dense: SearchIndex) -> None:
    query = "capital of Norway"
    orders = [SearchIndex.build(CITIES).search(query, 4), dense.search(query, 4)]
    sums: dict[str, float] = {}
    for hit in [hit for order in orders for hit in order]:
        sums[hit.id] = sums.get(hit.id, 0.0) + 1 / (60 + hit.rank)
    places = [document.id for document in CITIES]
    expected = sorted(sums, key=lambda id: (-sums[id], places.index(id)))
    hits = SearchIndex.build(CITIES, "hybrid", cache).search(query, 4)
    assert [hit.id for hit in hits] == expected
    assert hits[0] == Hit("oslo", pytest.approx(2 / 61), 1)


@settings(deadline=None, max_examples=examples(15))
@given(st.text(max_size=30))
def test_any_query_has_the_same_hits_twice_in_hybrid_search(cache: Path, query: str) -> None:
    index = SearchIndex.build(CITIES, "hybrid", cache)
    assert index.search(query, 4) == index.search(query, 4)
