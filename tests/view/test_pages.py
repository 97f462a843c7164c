"""The pages as the server writes them: filters, escaping, access, live stamps; without a browser."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.doc_terminal import run_main
from tests.view.hostile import CONTROLS, NAME, STORED, WRITTEN
from tests.view.made_runs import TOKEN, read_page, write_run

from stepwell.cli.main import main
from stepwell.core.errors import InputError
from stepwell.monitors.plain_text import show_controls
from stepwell.pool import open_pool
from stepwell.pool.texts import list_seqs
from stepwell.runs.loop.control_channel import ControlChannel
from stepwell.studies.paired_differences import PairedDifference
from stepwell.studies.rows import Figure, Row
from stepwell.view.app import ViewApp
from stepwell.view.text_index import TextIndex
from stepwell.view.trajectory_list import find_rows

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


# --- who may look ----------------------------------------------------------------------------


def test_without_the_token_nothing_is_shown(client: TestClient) -> None:
    stranger = TestClient(client.app, base_url="http://127.0.0.1")
    assert stranger.get("/").status_code == 401
    assert stranger.post("/run/one/control", json={"do": "stop"}).status_code == 401
    assert stranger.get("/?token=wrong").status_code == 401
    assert stranger.get("/health").text == "ok"


def test_the_link_stores_the_token_and_leaves_a_clean_address(client: TestClient) -> None:
    visitor = TestClient(client.app, base_url="http://127.0.0.1")
    reply = visitor.get(f"/?x=time_s&token={TOKEN}", follow_redirects=False)
    assert reply.status_code == 303 and reply.headers["location"] == "/?x=time_s"
    assert "httponly" in reply.headers["set-cookie"].lower()
    assert visitor.get("/").status_code == 200
    changed = visitor.post("/run/one/tags", json={"id": "traj-001", "tag": "x"})
    assert (
        changed.status_code == 401
    )  # a cookie alone, which a page of another port would send, changes nothing


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_other_sites_are_refused(client: TestClient, header: dict[str, str]) -> None:
    assert client.get("/", headers=header).status_code == 403


def test_answers_forbid_to_load_anything_from_elsewhere(client: TestClient) -> None:
    reply = client.get("/")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    assert not re.search(r"(src|href)=\"?https?:", reply.text)


# --- pages -----------------------------------------------------------------------------------


def test_the_overview_compares_runs_over_every_axis(client: TestClient) -> None:
    for axis, label in (
        ("update", "updates"),
        ("env_steps", "environment steps"),
        ("tokens", "action tokens"),
    ):
        page = read_page(client, "/", x=axis)
        assert "Held-out success" in page and f">{label}<" in page
    assert page.count("<svg") > 4


def test_runs_that_differ_in_their_seed_are_one_band(client: TestClient) -> None:
    assert "lake (2 seeds)" in read_page(client, "/")
    lines = read_page(client, "/", seeds="lines")
    assert "(2 seeds)" not in lines and 'data-name="lake-seed1"' in lines


def test_pages_of_a_run_open(client: TestClient) -> None:
    for page in ("", "/trajectories", "/pipeline", "/curriculum", "/tree"):
        assert "one" in read_page(client, f"/run/one{page}")
    assert client.get("/run/none").status_code == 404
    reply = client.get("/run/one/trajectory", params={"id": "gone"})
    assert reply.status_code == 400 and "is not in the pool" in html.unescape(reply.text)


def test_a_trajectory_shows_its_credit_by_step_and_token(client: TestClient) -> None:
    page = read_page(client, "/run/one/trajectory", id="traj-118")
    assert "Credit by step" in page and "clipped" in page and "3–4" in page
    assert 'data-a="p2"' in page and 'data-a="n4"' in page  # 0.5 and −2
    assert "ratio 4" in page and "Siblings" in page
    assert "Credit by step" not in read_page(client, "/run/one/trajectory", id="traj-001")


def test_verdicts_of_judges_and_problems_stand_beside_the_reply(client: TestClient) -> None:
    page = read_page(client, "/run/one/trajectory", id="traj-118")
    assert '<span class="plus">grounding holds (0.5)</span>' in page
    assert '<span class="minus">world modeling does not hold (0)</span>' in page
    evil = read_page(client, f"/run/{quote(NAME)}/trajectory", id="traj-evil")
    assert "Not followed: &lt;script&gt;" in evil and "judged 0.2" in evil


def test_siblings_stand_side_by_side(client: TestClient) -> None:
    page = read_page(client, "/run/one/group", name="g1")
    assert all(f"say {number}" in page for number in (4, 5, 6, 7)) and "What they share" in page


def test_the_terminal_shows_a_run_and_a_command_needs_one_that_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(folder / "one"), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "steppo on lake" in shown and "update 5/5" in shown and "held-out" in shown
    assert "unfinished" in shown and "q leave" not in shown
    assert main(["view", str(folder / "one"), "--do", "pause"]) == 2
    assert "no run listens in" in capsys.readouterr().err


def test_a_key_of_the_terminal_pauses_a_run_that_trains(tmp_path: Path) -> None:
    run = write_run(tmp_path, num_episodes=0)
    run_main(["top", str(run)], "pq")  # nothing runs: a line says so
    channel = ControlChannel(run, lambda: {"update": 5, "num_updates": 9}, lambda text: None)
    channel.open()
    try:
        run_main(["top", str(run)], "pq")
        assert channel.is_paused
    finally:
        channel.close()


def test_tags_are_written_to_the_pool(client: TestClient, folder: Path) -> None:
    fields = {"id": "traj-007", "tag": "keep"}
    with open_pool(folder / "one" / "pool") as pool:
        pool.tag(["traj-007"], "one")  # as every run tags its own: not shown
    assert client.post("/run/one/tags", json=fields).json() == {"tags": ["keep"]}
    with open_pool(folder / "one" / "pool") as pool:
        assert set(pool.get("traj-007").entry.tags) == {"keep", "one"}
    assert "remove tag keep" in (shown := read_page(client, "/run/one/trajectory", id="traj-007"))
    assert "remove tag one" not in shown
    assert "traj-007" in read_page(client, "/run/one/trajectories", tag="keep")
    assert client.post("/run/one/tags", json={**fields, "remove": "yes"}).json() == {"tags": []}
    assert client.post("/run/one/tags", json={"id": "gone", "tag": "x"}).status_code == 400
    assert client.post("/run/one/tags", json=["x"]).status_code == 400


def test_a_run_that_does_not_run_cannot_be_controlled(client: TestClient) -> None:
    reply = client.post("/run/one/control", json={"do": "pause"})
    assert reply.status_code == 409 and "no run listens" in reply.json()["error"]


def test_a_study_shows_its_paired_differences(tmp_path: Path) -> None:
    figure, apart = Figure(0.5, 0.1, 0.4, 0.6), PairedDifference(0.2, 0.05, 0.1, 0.3, 3, 20)
    rows = [
        Row("lake", "grpo", "", "", 3, 3, True, before=figure, after=figure),
        Row(
            "lake", "<b>steppo</b>", "", "", 3, 3, False, after=figure, compared_with="grpo", difference=apart
        ),
    ]
    content = {"name": "s", "title": "A study", "note": "", "num_runs": 6, "num_done": 6}
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table.md").write_text("")
    (tmp_path / "study" / "results.json").write_text(
        json.dumps({**content, "rows": [asdict(row) for row in rows]})
    )
    view = ViewApp([str(tmp_path / "study")], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        page = read_page(client, "/study/study")
        assert "+0.2" in page and "[+0.1, +0.3]" in page and "against grpo" in page
        assert "&lt;b&gt;steppo" in page and client.get("/study/other").status_code == 404


def test_every_committed_study_opens_in_the_view() -> None:
    folders = [path.parent for path in sorted(RESULTS.glob("*/table.md"))]
    view = ViewApp([str(folder) for folder in folders], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        pages = {folder.name: client.get(f"/study/{folder.name}") for folder in folders}
    assert len(pages) > 10 and {page.status_code for page in pages.values()} == {200}
    assert "against steppo" in pages["recipes"].text


# --- what agents wrote -----------------------------------------------------------------------

MARKUP = ("<script>w", "<img src=x", "<b>env", "<i onc", "<u>tag", "<b>judge", "<b>group", "a<b>&", "<s>")


@pytest.mark.parametrize("page", WRITTEN)
def test_whatever_agents_wrote_is_text(client: TestClient, page: str) -> None:
    text = read_page(client, f"/run/{quote(NAME)}{page}")
    assert [markup for markup in MARKUP if markup in text] == []
    assert not CONTROLS & set(text)
    if page not in ("/trajectories", "/tree"):  # these two show no text of agents
        assert "&lt;script&gt;window.hit=1" in text and "␀␛[2J⟨U+202E⟩gnp.␇⟨U+2066⟩⟨U+E0041⟩" in text


def test_the_overview_and_the_terminal_show_foreign_text_as_text(
    client: TestClient, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = read_page(client, "/", run=NAME)
    assert [markup for markup in MARKUP if markup in text] == [] and not CONTROLS & set(text)
    assert main(["top", str(folder / NAME), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "worker died: <script>" in shown and not CONTROLS & set(shown)


@pytest.mark.parametrize("words", [("show", "traj-evil"), ("show", "traj-text"), ("ls",)])
def test_commands_of_the_pool_show_foreign_text_as_text(folder: Path, words: tuple[str, ...]) -> None:
    command, *rest = words
    printed = run_main(["pool", command, str(folder / NAME / "pool"), *rest])
    assert "traj-evil" in printed or "traj-text" in printed
    assert not CONTROLS & set(printed)


def test_filters_are_shown_as_text_too(client: TestClient) -> None:
    page = read_page(client, "/run/one/trajectories", text=STORED, task='"><script>', min_version="<x>")
    assert "<script>" not in page and "min_version: &#39;&lt;x&gt;&#39; is not a whole number" in page


@given(st.text(st.characters(codec=None)))
def test_no_control_character_survives(text: str) -> None:
    shown = show_controls(text)
    hidden = {"Cc", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(char) in hidden and char not in "\n\t" for char in shown)
    assert not any(unicodedata.bidirectional(char) in ("LRE", "RLE", "LRO", "RLO", "PDF") for char in shown)
    assert not any(unicodedata.bidirectional(char) in ("LRI", "RLI", "FSI", "PDI") for char in shown)


# --- lists -----------------------------------------------------------------------------------


def test_pages_of_the_list_hold_every_trajectory_once(folder: Path) -> None:
    with open_pool(folder / "one" / "pool") as pool:
        seen, after = [], None
        while True:
            page = find_rows(pool, {} if after is None else {"after": after})
            seen += [row.id for row in page.rows]
            if (after := page.next) is None:
                break
        assert seen == [f"traj-{number:03d}" for number in reversed(range(120))] and page.total == 120


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"outcome": "success"}, 60),
        ({"status": "failure", "min_reward": "100"}, 10),
        ({"max_reward": "9"}, 10),
        ({"group": "g3"}, 4),
        ({"text": "SAY 11"}, 11),  # 11 and 110 to 119
        ({"text": "walk 57"}, 1),
        ({"min_version": "1"}, 0),
    ],
)
def test_filters_select(folder: Path, query: dict[str, str], count: int) -> None:
    with open_pool(folder / "one" / "pool") as pool:
        found = find_rows(pool, query, size=500)
        num_found = len(found.rows)
        while found.next is not None:  # a search that took long stopped early
            found = find_rows(pool, {**query, "after": found.next}, size=500)
            num_found += len(found.rows)
        assert num_found == count


def test_a_search_reads_a_finished_trajectory_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.view.trajectory_list.MAX_SEARCH_S", 60.0)  # on a busy machine too
    with open_pool(folder / "one" / "pool") as pool, open_pool(folder / "one" / "pool") as other:
        index = TextIndex(pool)
        index.start_reading()
        assert index.wait_until_read(60)
        found = find_rows(other, {"text": "say 11"}, index=index)
        assert [row.id for row in found.rows[:2]] == ["traj-119", "traj-118"] and len(found.rows) == 11
        index.close()
        known = index.get_texts(list_seqs(pool))
        pool.close()  # what is in memory is not read again
        assert index.get_texts(list(known)) == known and len(known) == 120
        assert find_rows(other, {"text": "say 11", "outcome": "success"}, index=index).num_searched == 60


def test_a_text_index_keeps_no_more_than_it_may(folder: Path) -> None:
    with open_pool(folder / "one" / "pool") as pool:
        index = TextIndex(pool, max_chars=200)
        assert len(find_rows(pool, {"text": "say 11"}, size=500, index=index).rows) == 11
        assert 0 < len(index._kept) < 120 and sum(len(text) for _, text in index._kept.values()) <= 200


@pytest.mark.parametrize("query", [{"outcome": "x"}, {"min_reward": "x"}, {"status": "x"}, {"channel": "x"}])
def test_wrong_filters_are_named(folder: Path, query: dict[str, str]) -> None:
    with open_pool(folder / "one" / "pool") as pool, pytest.raises(InputError):
        find_rows(pool, query)
