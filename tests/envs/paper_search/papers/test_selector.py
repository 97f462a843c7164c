"""Needs and the selector: answers by topic, scores by hand, the selector's own mistakes."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.core import InputError
from stepwell.envs.paper_search.papers import (
    Facet,
    FacetRequirement,
    GraphSpec,
    PaperGraph,
    Selector,
    list_needs,
    read_need,
    write_request,
)
from stepwell.envs.paper_search.papers.generator import generate_graph
from stepwell.envs.paper_search.papers.selector import NEAR_ZERO, THRESHOLD, measure_quality

FACETS = (
    Facet("domain", (("retinal images",), ("river networks",))),
    Facet("task", (("ranking",), ("denoising",))),
)
NEED = FacetRequirement(((0, 0), (1, 0)))  # its words: retinal, images, ranking
NONE = -1
# title, about (domain, task), mentions (domain, task)
PAPERS = [
    ("Ranking for retinal images", (0, 0), (NONE, NONE)),  # 0: an answer in the request's words
    ("A study of the eye", (0, 0), (NONE, NONE)),  # 1: an answer in other words
    ("Retinal images, and ranking beside", (0, 1), (NONE, 0)),  # 2: mentions one facet, in the same words
    ("Denoising of eyes", (0, 1), (NONE, 0)),  # 3: mentions it in other words
    ("Denoising of retinal images", (0, 1), (NONE, NONE)),  # 4: has one facet only
    ("Denoising in river networks", (1, 1), (NONE, NONE)),  # 5: has none
    ("Rankings of retinal imagesets", (0, 0), (NONE, NONE)),  # 6: an answer; only one of its words is whole
]


@pytest.fixture
def graph() -> PaperGraph:
    count = len(PAPERS)
    return PaperGraph(
        ids=tuple(f"x{number}" for number in range(count)),
        titles=tuple(title for title, *_ in PAPERS),
        abstracts=("",) * count,
        years=np.full(count, 2000, np.int32),
        cited=np.zeros(0, np.int32),
        cited_ends=np.zeros(count, np.int32),
        digest="by hand",
        facets=FACETS,
        about=np.array([about for _, about, _ in PAPERS], np.int32),
        mentions=np.array([mentions for *_, mentions in PAPERS], np.int32),
    )


@pytest.fixture
def selector(graph: PaperGraph) -> Selector:
    return Selector(graph, write_request(graph, NEED), NEED.answers(graph), NEED)


@pytest.mark.parametrize(
    ("paper", "score"),
    [
        (0, 1.0),
        (1, 0.75),
        (2, 0.55),
        (3, 0.55 * 0.75),
        (4, 0.25 * (0.75 + 0.25 * 2 / 3)),
        (5, 0.0),
        (6, 0.75 + 0.25 / 3),
    ],
)
def test_scores_are_the_formulas(selector: Selector, paper: int, score: float) -> None:
    assert selector.score(paper) == pytest.approx(score, abs=1e-12)
    assert selector.score(paper) == selector.score(paper)


def test_the_threshold_keeps_answers_and_what_mentions_in_the_same_words(selector: Selector) -> None:
    assert [paper for paper in range(len(PAPERS)) if selector.is_kept(paper)] == [0, 1, 2, 6]
    assert selector.list_mistakes() == [2]
    assert selector.compute_ceiling() == pytest.approx(6 / 7)


def test_quality_after_the_threshold(selector: Selector) -> None:
    answers = [0, 1, 6]
    f1, recall, precision = measure_quality(selector, [0, 2, 4, 5], answers)
    assert (recall, precision, f1) == (pytest.approx(1 / 3), 0.5, pytest.approx(0.4))
    assert measure_quality(selector, [], answers) == (0.0, 0.0, 0.0)
    assert measure_quality(selector, [2, 4], answers) == (0.0, 0.0, 0.0)
    assert measure_quality(selector, answers, answers) == (1.0, 1.0, 1.0)


def test_a_snapshots_selector_knows_annotations_and_words(graph: PaperGraph) -> None:
    selector = Selector(graph, "ranking of the retinal images", [1])
    assert selector.score(1) == 0.75
    assert selector.score(0) == pytest.approx(0.45)
    assert selector.score(5) == 0.0
    assert selector.list_mistakes() == [] and selector.compute_ceiling() == 1.0


def test_every_answer_of_a_generated_need_is_kept_and_every_mistake_found() -> None:
    graph = generate_graph(GraphSpec(num_papers=1_200, style="tiny", mention_share=0.6, alias_share=0.5))
    needs = list_needs(graph, (2, 3), 3, 12)
    assert len(needs) == len(set(needs)) > 100
    num_mistakes = 0
    for need in needs[::10]:
        answers = need.answers(graph)
        assert 3 <= len(answers) <= 12
        selector = Selector(graph, write_request(graph, need, is_short=True), answers, need)
        kept = {paper for paper in range(len(graph)) if selector.is_kept(paper)}
        assert kept == {*answers, *selector.list_mistakes()}
        assert measure_quality(selector, range(len(graph)), answers)[0] == pytest.approx(
            selector.compute_ceiling()
        )
        scores = [selector.score(paper) for paper in range(len(graph))]
        assert all(score == 0.0 or NEAR_ZERO <= score <= 1.0 for score in scores)
        assert min(scores[paper] for paper in answers) >= 0.75 > THRESHOLD
        num_mistakes += len(selector.list_mistakes())
    assert num_mistakes > 0


def test_requests_say_every_facet_in_one_of_its_forms_and_never_change() -> None:
    graph = generate_graph(GraphSpec(num_papers=1_500))
    needs = list_needs(graph, (2, 3), 4, 40)
    requests = [write_request(graph, need) for need in needs]
    assert len(set(requests)) == len(requests) > 200
    for need, request in zip(needs, requests, strict=True):
        assert request == write_request(graph, need)
        for facet, value in need.values:
            assert any(form in request for form in graph.facets[facet].values[value])


@pytest.mark.parametrize(
    "value", [[], None, "ab", [[0]], [[0, 0, 0]], [[0, "a"]], [[9, 0]], [[0, -1]], [[0, True]]]
)
def test_what_is_no_need_is_refused(graph: PaperGraph, value: object) -> None:
    with pytest.raises(InputError, match="pairs"):
        read_need(value, graph)


def test_a_need_is_read_from_pairs(graph: PaperGraph) -> None:
    assert read_need([[0, 0], [1, 0]], graph) == NEED
