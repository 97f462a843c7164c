"""Observations for agents, and the true state as text.

An observation contains the request, the results of the last turn's calls, the size of the pool, and lists of
papers: new papers of the last turn, then older ones that were not expanded. Both lists are ordered by how
many of the request's words a paper contains (which anyone could count; relevance is not shown), then by the
order of finding. Each list has at most `num_shown` lines, and the length of lines and of quoted agent text is
bounded. The short form is the request, failures, and the two lists (`Now:` and `Back:`); every word of it is
one token in the tiny models' vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from stepwell.envs.paper_search.options import PaperLimits
from stepwell.envs.paper_search.papers import PaperGraph, Quality, Selector
from stepwell.envs.paper_search.pool import PaperPool

MAX_TITLE, MAX_REQUEST, MAX_SAID = 160, 1000, 60


class EpisodeState(NamedTuple):
    """The true state of an episode."""

    request: str
    num_answers: int
    pool_size: int = 0
    num_expanded: int = 0
    num_searches: int = 0
    quality: Quality = Quality()


def to_one_line(text: str, limit: int) -> str:
    """A text on one line: printable, and cut to the limit."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def quote_text(text: str) -> str:
    """Agent text in quotes."""
    return f'"{to_one_line(text, MAX_SAID)}"'


def order_papers(pool: PaperPool, selector: Selector) -> tuple[list[int], list[int]]:
    """New papers and older ones that were not expanded, in listing order."""
    new, old = (
        sorted(papers, key=lambda p: -selector.measure_word_share(p)) for papers in (pool.new, pool.old)
    )
    return new, old


def write_observation(
    graph: PaperGraph, limits: PaperLimits, request: str, pool: PaperPool, selector: Selector
) -> str:
    """The observation."""
    count = len(pool.papers)
    if limits.is_short:
        lines = [f"find {request}", *pool.problems]
        names = "Now:", "Back:"
    else:
        lines = [f"Request: {request[:MAX_REQUEST]}"]
        if pool.replies:
            lines += ["Last turn:", *(f"- {reply}" for reply in pool.replies)]
        lines.append(f"The pool holds {count} paper{'s' * (count != 1)}; {len(pool.expanded)} expanded.")
        names = "New papers:", "Older papers, not expanded:"
    chars = limits.abstract_chars, 0
    for name, papers, abstract_chars in zip(names, order_papers(pool, selector), chars, strict=True):
        if papers:
            lines += [name, *_list_papers(graph, papers, limits, abstract_chars)]
    return "\n".join(lines)


def _list_papers(
    graph: PaperGraph, papers: Sequence[int], limits: PaperLimits, abstract_chars: int
) -> list[str]:
    shown = []
    for paper in papers[: limits.num_shown]:
        title = graph.titles[paper][:MAX_TITLE]
        if limits.is_short:
            shown.append(f"{graph.ids[paper]} {title}")
            continue
        line = f"[{graph.ids[paper]}] {title} ({graph.years[paper]})"
        abstract = graph.abstracts[paper][:abstract_chars]
        shown.append(f"{line}: {abstract}" if abstract else line)
    left = len(papers) - len(shown)
    return [*shown, f"and {left} more"] if left and not limits.is_short else shown


def write_sentences(now: EpisodeState) -> str:
    """Sentences about the request and how much of it was found."""
    quality = now.quality
    return (
        f"The request is: {now.request} It has {now.num_answers} answers. "
        f"The pool holds {now.pool_size} papers, {now.num_expanded} of them expanded, "
        f"after {now.num_searches} searches. "
        f"Recall is {quality.recall:.2f}, precision {quality.precision:.2f}, F1 {quality.f1:.2f}."
    )


def write_structured(now: EpisodeState) -> str:
    """The same as one JSON object."""
    facts = {
        "request": now.request,
        "answers": now.num_answers,
        "pool": now.pool_size,
        "expanded": now.num_expanded,
        "searches": now.num_searches,
        "recall": round(now.quality.recall, 2),
        "precision": round(now.quality.precision, 2),
        "f1": round(now.quality.f1, 2),
    }
    return json.dumps(facts, ensure_ascii=False)
