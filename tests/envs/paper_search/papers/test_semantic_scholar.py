"""Snapshots in Semantic Scholar's published form, on small files of our own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.core import ConfigError
from stepwell.envs.paper_search.papers.semantic_scholar import AnnotatedRequest, read_requests, read_snapshot


def paper(
    corpus_id: int, arxiv: str | None, title: str, date: str | None, year: int | None = 2020
) -> dict[str, Any]:
    return {
        "corpusid": corpus_id,
        "externalids": {"ACL": None, "DBLP": None, "ArXiv": arxiv, "MAG": "17", "CorpusId": str(corpus_id)},
        "url": "",
        "title": title,
        "authors": [{"authorId": "1", "name": "A. Writer"}],
        "venue": "",
        "year": year,
        "referencecount": 2,
        "citationcount": 1,
        "isopenaccess": True,
        "publicationdate": date,
        "journal": None,
    }


PAPERS = [
    paper(11, "2003.00001", "Wells of water", "2020-03-01"),
    paper(12, "1901.00002v3", "Steps of  stone", "2019-01-05", 2019),
    paper(13, None, "Not on arXiv", "2018-01-01"),
    paper(14, "2105.00003", "No abstract", "2021-05-01"),
    paper(15, "2106.00004", "Rivers", None, 2021),
    paper(16, "2106.00005", " ", "2021-06-01"),
    paper(17, "1701.00006", "Undated", None, None),
    paper(18, "2003.00001", "Wells again", "2022-01-01"),
    {"corpusid": 19, "externalids": None, "title": "Bare"},
]
ABSTRACTS = [
    {"corpusid": n, "openaccessinfo": {"status": None}, "abstract": f"About\n{n}.", "updated": "2026-01-02"}
    for n in (11, 12, 13, 15, 16, 17, 18)
] + [{"corpusid": 14, "openaccessinfo": None, "abstract": None, "updated": None}]
CITATIONS = [
    {"citationid": n, "citingcorpusid": a, "citedcorpusid": b, "isinfluential": False, "contexts": None}
    for n, (a, b) in enumerate(
        [
            (11, 12),
            ("11", "12"),
            (15, 12),
            ("15", 11),
            (15, 13),
            (15, None),
            (None, 12),
            (12, 12),
            (15, [11]),
            ("x", 11),
        ]
    )
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "snapshot"
    write(root / "papers" / "part0.jsonl.gz", PAPERS[:4])
    write(root / "papers" / "part1.jsonl", PAPERS[4:])
    write(root / "abstracts" / "20260102_0.gz", ABSTRACTS)
    write(root / "citations" / "part0.jsonl", CITATIONS)
    return root


def test_kept_are_papers_on_arxiv_with_title_and_abstract_in_order_of_time(
    folder: Path, tmp_path: Path
) -> None:
    graph = read_snapshot(folder, tmp_path)
    assert graph.ids == ("1701.00006", "1901.00002", "2003.00001", "2106.00004")
    assert graph.titles == ("Undated", "Steps of stone", "Wells of water", "Rivers")
    assert graph.abstracts == ("About 17.", "About 12.", "About 11.", "About 15.")
    assert graph.years.tolist() == [0, 2019, 2020, 2021]
    assert graph.facets == () and graph.about is None


def test_citations_among_kept_papers_count_once(folder: Path, tmp_path: Path) -> None:
    graph = read_snapshot(folder, tmp_path)
    assert [graph.list_references(number) for number in range(4)] == [[], [], [1], [1, 2]]
    assert graph.list_citations(1) == [2, 3]


def test_a_snapshot_is_read_once_and_again_when_its_files_change(folder: Path, tmp_path: Path) -> None:
    first = read_snapshot(folder, tmp_path)
    assert read_snapshot(folder, tmp_path).digest == first.digest
    assert len(list((tmp_path / "papers").glob("snapshot-*.npz"))) == 1
    write(folder / "papers" / "part2.jsonl", [paper(13, "1801.00009", "Now on arXiv", "2018-01-01")])
    again = read_snapshot(folder, tmp_path)
    assert again.digest != first.digest and "1801.00009" in again.ids


def test_requests_keep_answers_that_the_graph_holds(folder: Path, tmp_path: Path) -> None:
    graph = read_snapshot(folder, tmp_path)
    rows = [
        {
            "question": "Water?",
            "answer": ["Rivers", "Wells of water"],
            "answer_arxiv_id": ["2106.00004", "2003.00001v2"],
        },
        {"question": "Fire?", "answer": ["Flames"], "answer_arxiv_id": ["9999.00001"]},
        {"question": "Water?", "answer": [], "answer_arxiv_id": ["1901.00002"]},
    ]
    write(tmp_path / "requests.jsonl", rows)
    assert read_requests(tmp_path / "requests.jsonl", graph) == [AnnotatedRequest("Water?", (2, 3))]
    write(tmp_path / "none.jsonl", rows[1:2])
    with pytest.raises(ConfigError, match="no request whose answers"):
        read_requests(tmp_path / "none.jsonl", graph)


@pytest.mark.parametrize(
    "line", ['{"question": 3, "answer_arxiv_id": []}', '{"question": "x"}', "[1]", "{", '"x"']
)
def test_bad_lines_of_requests_are_told_with_their_file(folder: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl"):
        read_requests(tmp_path / "bad.jsonl", read_snapshot(folder, tmp_path))


def test_a_folder_without_the_three_data_sets_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no files in papers/"):
        read_snapshot(tmp_path)


def test_a_broken_archive_is_told(folder: Path, tmp_path: Path) -> None:
    (folder / "citations" / "part1.gz").write_bytes(b"not gzip")
    with pytest.raises(ConfigError, match=r"part1\.gz cannot be read"):
        read_snapshot(folder, tmp_path)


def test_a_snapshot_of_nothing_useful_is_told(folder: Path, tmp_path: Path) -> None:
    write(folder / "abstracts" / "20260102_0.gz", [])
    with pytest.raises(ConfigError, match="no paper that is on arXiv"):
        read_snapshot(folder, tmp_path)
