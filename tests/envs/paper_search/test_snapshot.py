"""Paper search over a snapshot: requests of a file, answers by annotation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.core import ConfigError, ToolCall
from stepwell.envs.paper_search.env import PaperSearch
from stepwell.envs.paper_search.options import PaperSearchOptions

TITLES = ["wells of stone", "stairs to water", "water in dry lands", "songs of birds", "birds near wells"]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PaperSearchOptions:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    rows = {
        "papers": [
            {"corpusid": n, "externalids": {"ArXiv": f"2001.0000{n}"}, "title": title, "year": 2000 + n}
            for n, title in enumerate(TITLES)
        ],
        "abstracts": [{"corpusid": n, "abstract": f"We study {title}."} for n, title in enumerate(TITLES)],
        "citations": [{"citingcorpusid": 2, "citedcorpusid": 1}, {"citingcorpusid": 4, "citedcorpusid": 0}],
    }
    for name, lines in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_text("\n".join(map(json.dumps, lines)))
    asked = [
        {"question": "Which papers treat stairs to water?", "answer_arxiv_id": ["2001.00001", "2001.00002"]},
        {"question": "Which papers treat birds?", "answer_arxiv_id": ["2001.00003"]},
    ]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    return PaperSearchOptions(snapshot=str(tmp_path), requests=str(tmp_path / "asked.jsonl"), num_results=1)


def test_an_episode_over_a_snapshot(options: PaperSearchOptions) -> None:
    task = next(
        task for seed in range(20) if "stairs" in str((task := PaperSearch.make_task(options, seed)).content)
    )
    env = PaperSearch(options)
    env.reset(options={"task": task})
    _, reward, *_ = env.step([ToolCall("search", {"query": "stairs"}).text])
    assert reward == pytest.approx(0.75 + 0.25 * 2 / 5)  # of which, papers, treat, stairs, water it has two
    *_, info = env.step([ToolCall("expand", {"paper_id": "2001.00001"}).text])
    assert (info["recall"], info["precision"], info["f1"]) == (1.0, 1.0, 1.0)


def test_the_oracle_solves_requests_of_a_snapshot(options: PaperSearchOptions) -> None:
    for seed in range(6):
        env = PaperSearch(options)
        env.reset(seed=seed)
        for _ in range(env.description.max_turns):
            *_, info = env.step(env.oracle())
        assert info["success"] is True and info["num_penalties"] == 0


def test_a_snapshot_and_its_requests_go_together(options: PaperSearchOptions) -> None:
    with pytest.raises(ConfigError, match=r"options\.requests"):
        PaperSearch.make_task(options.model_copy(update={"requests": None}), 0)
    with pytest.raises(ConfigError, match="set both or neither"):
        PaperSearch.make_task(options.model_copy(update={"snapshot": None}), 0)
