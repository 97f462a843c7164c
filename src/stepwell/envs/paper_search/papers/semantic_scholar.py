"""A Semantic Scholar snapshot as a graph, and files of annotated requests over it.

A snapshot is a folder with the data sets `papers`, `abstracts` and `citations` as that service publishes
them, a folder of JSON lines each, plain or gzipped:

    papers/*      {"corpusid": 1, "externalids": {"ArXiv": "2301.00001", ...}, "title": ..., "year": ...,
                   "publicationdate": "2023-01-02", ...}
    abstracts/*   {"corpusid": 1, "abstract": ...}
    citations/*   {"citingcorpusid": 1, "citedcorpusid": 2, ...}

Kept are papers on arXiv that have a title and an abstract, in order of their date, and citations among
them, each once. A paper's id is its arXiv number. The graph is kept in the cache under a digest of the
files' names, sizes and times. All of it is held in memory, a few kB a paper.

Requests are JSON lines in the form of PaSa's data: `{"question": ..., "answer_arxiv_id": [...]}`. Answers
that the graph lacks are left out, and so are requests that then have none.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.core.errors import ConfigError
from stepwell.core.ids import hash_content
from stepwell.data.cache import open_cached
from stepwell.envs.paper_search.papers.graph import PaperGraph

PARTS = ("papers", "abstracts", "citations")
_REVISION = re.compile(r"v\d+$")


class AnnotatedRequest(NamedTuple):
    """A request and the numbers of the papers that answer it."""

    text: str
    answers: tuple[int, ...]


class _Row(NamedTuple):
    date: str
    corpus_id: int
    arxiv_id: str
    title: str


def read_snapshot(folder: Path, root: Path | None = None) -> PaperGraph:
    """The graph of a snapshot, from the cache or read now."""
    files = {part: _list_files(folder, part) for part in PARTS}
    listed = [
        (f.parent.name, f.name, f.stat().st_size, f.stat().st_mtime_ns) for p in PARTS for f in files[p]
    ]
    digest = hash_content(listed)
    name = f"papers/snapshot-{digest}.npz"
    return open_cached(name, lambda path: _build_graph(files, digest).save(path), PaperGraph.load, root)


def read_requests(path: Path, graph: PaperGraph) -> list[AnnotatedRequest]:
    """The requests of a file that have answers in the graph."""
    found: dict[str, AnnotatedRequest] = {}
    for place, row in _read_rows(path):
        text, answers = row.get("question"), row.get("answer_arxiv_id")
        if not isinstance(text, str) or not isinstance(answers, list):
            raise ConfigError(
                f"{path}, line {place}: needs the text 'question' and the list 'answer_arxiv_id'"
            )
        numbers = {graph.numbers.get(_REVISION.sub("", str(answer))) for answer in answers} - {None}
        if numbers:
            found.setdefault(text, AnnotatedRequest(text, tuple(sorted(n for n in numbers if n is not None))))
    if not found:
        raise ConfigError(f"{path} holds no request whose answers are in the graph")
    return list(found.values())


def _build_graph(files: dict[str, list[Path]], digest: str) -> PaperGraph:
    abstracts: dict[int, str] = {}
    for row in _read_all_rows(files["abstracts"]):
        corpus_id, abstract = _read_corpus_id(row.get("corpusid")), row.get("abstract")
        if corpus_id is not None and isinstance(abstract, str) and abstract.strip():
            abstracts[corpus_id] = " ".join(abstract.split())
    kept: dict[str, _Row] = {}
    for row in _read_all_rows(files["papers"]):
        paper = _read_paper(row)
        if paper is not None and paper.corpus_id in abstracts:
            kept.setdefault(paper.arxiv_id, paper)
    papers = sorted(kept.values())
    if not papers:
        raise ConfigError("the snapshot holds no paper that is on arXiv and has a title and an abstract")
    number: dict[int | None, int] = {paper.corpus_id: place for place, paper in enumerate(papers)}
    cited: list[dict[int, None]] = [{} for _ in papers]
    for row in _read_all_rows(files["citations"]):
        citing = number.get(_read_corpus_id(row.get("citingcorpusid")))
        target = number.get(_read_corpus_id(row.get("citedcorpusid")))
        if citing is not None and target is not None and citing != target:
            cited[citing][target] = None
    return PaperGraph(
        ids=tuple(paper.arxiv_id for paper in papers),
        titles=tuple(paper.title for paper in papers),
        abstracts=tuple(abstracts[paper.corpus_id] for paper in papers),
        years=np.array([int(paper.date[:4]) for paper in papers], np.int32),
        cited=np.array([target for row in cited for target in row], np.int32),
        cited_ends=np.cumsum([len(row) for row in cited]).astype(np.int32),
        digest=digest,
    )


def _read_paper(row: dict[str, Any]) -> _Row | None:
    """A line of `papers`, if it is one that is kept."""
    external = row.get("externalids")
    arxiv_id = external.get("ArXiv") if isinstance(external, dict) else None
    title, corpus_id = row.get("title"), _read_corpus_id(row.get("corpusid"))
    if not arxiv_id or not isinstance(title, str) or not title.strip() or corpus_id is None:
        return None
    date = str(row.get("publicationdate") or "")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        year = row.get("year")
        date = f"{year if isinstance(year, int) and 0 < year < 10_000 else 0:04}-00-00"
    return _Row(date, corpus_id, _REVISION.sub("", str(arxiv_id)), " ".join(title.split()))


def _read_corpus_id(value: Any) -> int | None:
    """A number, which some releases write as a text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if type(value) is int else None


def _list_files(folder: Path, part: str) -> list[Path]:
    found = sorted(path for path in (folder / part).glob("*") if path.is_file() and path.name[0] != ".")
    if not found:
        raise ConfigError(f"{folder} is not a snapshot: there are no files in {part}/")
    return found


def _read_all_rows(files: list[Path]) -> Iterator[dict[str, Any]]:
    for path in files:
        yield from (row for _, row in _read_rows(path))


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, with the numbers of their lines."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for place, line in enumerate(file, start=1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ConfigError(f"{path}, line {place}: a line must be one JSON object")
                    yield place, row
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON lines: {error}") from error
