"""The generator: links lead back in time, limits hold, words and topics agree, the same graph everywhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import EncodingError, InputError, hash_content
from stepwell.envs.paper_search.papers import GraphSpec, PaperGraph, open_generated_graph
from stepwell.envs.paper_search.papers.generator import generate_graph
from stepwell.envs.paper_search.papers.vocabulary import TINY_WORDS, make_full_facets, make_tiny_facets
from stepwell.envs.retrieval.text import split_words

GOLDEN_TITLES = ("end number", "zer north on", "ar use li")
GOLDEN_TINY = "0d7bb58c1b86b071d336210f8884e029"
GOLDEN_FULL = "119835f93380963d1255ffc588672038"
SPECS = st.builds(
    GraphSpec,
    num_papers=st.integers(1, 150),
    seed=st.integers(0, 2**32),
    style=st.sampled_from(["full", "tiny"]),
    favoured=st.integers(1, 30),
    mean_references=st.floats(0.5, 30),
    max_references=st.integers(0, 40),
    mention_share=st.floats(0, 1),
    alias_share=st.floats(0, 1),
    silent_share=st.floats(0, 1),
    survey_share=st.floats(0, 0.5),
)


@pytest.fixture(scope="module")
def full() -> PaperGraph:
    return generate_graph(GraphSpec(num_papers=1_500, seed=3))


@settings(max_examples=examples(40))
@given(SPECS)
def test_papers_cite_older_papers_only_each_once_and_not_too_many(spec: GraphSpec) -> None:
    graph = generate_graph(spec)
    assert len(graph) == spec.num_papers
    for paper in range(len(graph)):
        cited = graph.list_references(paper)
        assert all(0 <= older < paper for older in cited)
        assert len(set(cited)) == len(cited) <= spec.max_references
        assert all(paper in graph.list_citations(older) for older in cited)
    assert int(graph.num_citations.sum()) == len(graph.cited)
    assert all(a <= b for a, b in pairwise(graph.years.tolist()))


@settings(max_examples=examples(25))
@given(SPECS)
def test_the_same_spec_makes_the_same_graph(spec: GraphSpec) -> None:
    one, two = generate_graph(spec), generate_graph(spec)
    assert (one.titles, one.abstracts, one.digest) == (two.titles, two.abstracts, two.digest)
    assert np.array_equal(one.cited, two.cited) and np.array_equal(one.about, two.about)


def test_the_graph_is_the_same_on_every_machine() -> None:
    graph = generate_graph(GraphSpec(num_papers=300, style="tiny", mean_references=5.0, max_references=12))
    assert graph.titles[:3] == GOLDEN_TITLES
    assert hash_content([graph.titles, graph.abstracts, graph.cited.tolist()]) == GOLDEN_TINY
    graph = generate_graph(GraphSpec(num_papers=300))
    assert hash_content([graph.titles, graph.abstracts, graph.cited.tolist()]) == GOLDEN_FULL


def test_another_seed_makes_another_graph() -> None:
    one, two = (generate_graph(GraphSpec(num_papers=50, seed=seed)) for seed in (0, 1))
    assert one.titles != two.titles and one.digest != two.digest


def test_citing_papers_come_most_cited_first_and_newest_first_among_equals(full: PaperGraph) -> None:
    counts = full.num_citations
    popular = int(counts.argmax())
    order = [(-int(counts[paper]), -paper) for paper in full.list_citations(popular)]
    assert len(order) == counts[popular] > 30
    assert order == sorted(order)


def test_few_papers_gather_most_citations(full: PaperGraph) -> None:
    counts = np.sort(full.num_citations)[::-1]
    assert counts[: len(full) // 10].sum() > 0.4 * counts.sum()
    assert counts[len(full) // 2 :].sum() < 0.2 * counts.sum()


def test_references_are_topical(full: PaperGraph) -> None:
    assert full.about is not None
    sources = np.repeat(np.arange(len(full)), np.diff(full.cited_ends, prepend=0))
    domains = full.about[:, 0]
    same = float((domains[sources] == domains[full.cited]).mean())
    by_chance = float((np.bincount(domains) / len(full)) @ (np.bincount(domains) / len(full)))
    assert by_chance < 0.05 and same > 0.5


def test_a_paper_says_its_domain_in_one_form_and_is_silent_about_one_facet_at_most() -> None:
    graph = generate_graph(GraphSpec(num_papers=600, mention_share=0.0, alias_share=0.0, survey_share=0.0))
    assert graph.about is not None
    num_silent = 0
    for paper, text in enumerate(graph.texts):
        held = set(split_words(text))
        silent = 0
        for facet, value in zip(graph.facets, graph.about[paper], strict=True):
            forms = facet.values[value]
            said = [form for form in forms if held.issuperset(split_words(form))]
            if facet.name == "domain":
                assert len(said) == 1
            silent += not said
        assert silent <= 2  # a title or an abstract pattern may leave out what another would have said
        num_silent += silent == 0
    assert 0.4 < num_silent / len(graph) < 0.75


def test_without_silence_every_tiny_title_holds_a_word_of_each_facet() -> None:
    graph = generate_graph(GraphSpec(num_papers=400, style="tiny", silent_share=0.0, survey_share=0.0))
    assert graph.about is not None
    for title, about in zip(graph.titles, graph.about, strict=True):
        said = title.split()
        assert len(said) == len(graph.facets)
        for word, facet, value in zip(said, graph.facets, about, strict=True):
            assert word in facet.values[value]


@given(st.integers(0, 2**32))
def test_no_tiny_word_has_two_meanings(seed: int) -> None:
    said = [form for facet in make_tiny_facets(seed) for forms in facet.values for form in forms]
    assert len(set(said)) == len(said) == 78
    assert set(said) <= set(TINY_WORDS.split())


def test_the_full_vocabulary_is_large_and_its_forms_are_distinct() -> None:
    facets = make_full_facets(0)
    assert [(facet.name, len(facet.values)) for facet in facets] == [
        ("domain", 40),
        ("task", 24),
        ("method", 40),
        ("setting", 24),
        ("dataset", 200),
    ]
    said = [form for facet in facets for forms in facet.values for form in forms]
    assert len(set(said)) == len(said) == 784


def test_a_stored_graph_is_read_as_it_was(full: PaperGraph, tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    full.save(path)
    again = PaperGraph.load(path)
    assert (again.ids, again.titles, again.abstracts) == (full.ids, full.titles, full.abstracts)
    assert (again.digest, again.facets) == (full.digest, full.facets)
    for name in ("years", "cited", "cited_ends", "about", "mentions"):
        assert np.array_equal(getattr(again, name), getattr(full, name))


def test_the_cache_makes_a_graph_once_and_makes_a_damaged_one_again(tmp_path: Path) -> None:
    spec = GraphSpec(num_papers=60, style="tiny")
    first = open_generated_graph(spec, tmp_path)
    (path,) = (tmp_path / "papers").glob("*.npz")
    assert spec.digest in path.name
    time = path.stat().st_mtime_ns
    assert open_generated_graph(spec, tmp_path).titles == first.titles and path.stat().st_mtime_ns == time
    path.write_bytes(path.read_bytes()[:200])
    with pytest.warns(UserWarning, match="damaged"):
        assert open_generated_graph(spec, tmp_path).titles == first.titles


@pytest.mark.parametrize("data", [b"", b"PK", b"hello"])
def test_what_is_no_graph_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(EncodingError, match="not a graph of papers"):
        PaperGraph.load(tmp_path / "x.npz")


def test_a_graph_refuses_links_to_nowhere_and_columns_of_other_lengths() -> None:
    none = np.zeros(0, np.int32)
    with pytest.raises(InputError, match="as many ids as titles"):
        PaperGraph(("a",), (), (), none, none, none, "x")
    row = np.ones(1, np.int32)
    with pytest.raises(InputError, match="does not hold"):
        PaperGraph(("a",), ("A",), ("",), row, row, row, "x")
    with pytest.raises(InputError, match="num_papers"):
        GraphSpec(num_papers=0)
