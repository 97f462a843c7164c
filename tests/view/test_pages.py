"""The pages as the server writes them: filters, escaping, access, live stamps; without a browser."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.view.hostile import EVIL, NAME, write_hostile_run

from stepwell.cli.main import main
from stepwell.core import (
    ArrayAction,
    ArrayState,
    Status,
    Step,
    Task,
    TokenAction,
    TokenState,
    Trajectory,
)
from stepwell.core.errors import InputError
from stepwell.core.statistics import PairedDifference
from stepwell.monitors import JsonlMonitor, LogEntry, RunInfo
from stepwell.pool import open_pool
from stepwell.pool.credit_records import TRAINED, CreditRecord
from stepwell.pool.credit_store import CreditStore
from stepwell.rendering.token_text import TokenReader, map_byte_letters
from stepwell.studies.results import Figure, Row
from stepwell.view.access import HEADER
from stepwell.view.app import ViewApp
from stepwell.view.comparison import Track, align_tracks, thin_track
from stepwell.view.run_files import MetricTail, ViewedRun
from stepwell.view.run_finder import RunShelf
from stepwell.view.templates import show_controls
from stepwell.view.terminal import draw_sparkline
from stepwell.view.text_index import TextIndex
from stepwell.view.trajectory_list import find_rows
from stepwell.view.tree_chart import build_batch_tree

TOKEN = "secret"


def make_episode(number: int, *, group: str = "", status: Status = Status.SUCCESS) -> Trajectory:
    prompt = np.array([1, 2, 3, number], np.int32)
    step = Step(
        TokenState(prompt),
        TokenAction(np.array([7, 8], np.int32), f"say {number}"),
        np.full(2, -0.5, np.float32),
    )
    step.assign_reward({"task": float(number)})
    task = Task("lake", {"n": number % 3}, instruction=f"walk {number}")
    return Trajectory(task, [step], status, group=group, id=f"traj-{number:03d}")


def write_run(folder: Path, name: str = "one", num_episodes: int = 120, seed: int = 0) -> Path:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        f'seed = {seed}\n[env]\nname = "lake"\n[recipe]\nname = "steppo"\n[train]\nnum_updates = 5\n'
    )
    monitor = JsonlMonitor()
    monitor.start(RunInfo(run, name=name, env="lake", recipe="steppo", seed=seed, num_updates=5))
    for update in range(5):
        values = {"success": 0.1 * update, "low": 0.0, "high": 1.0}
        monitor.record(LogEntry("eval", update, update, 10 * update, values))
        more = {"reward": 0.2 * update, "entropy": 1.0, "tokens": 100.0, "tokens_per_s": 50.0 + seed}
        monitor.record(LogEntry("update", update + 1, update + 0.5, 10 * update + 10, more))
    monitor.close()
    if num_episodes:
        (run / "pool").mkdir()
        with open_pool(run / "pool") as pool:
            status = (Status.SUCCESS, Status.FAILURE)
            pool.add(
                [make_episode(i, group=f"g{i // 4}", status=status[i % 2]) for i in range(num_episodes)],
                group_sizes=4,
            )
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made")
    write_run(made)
    write_run(made, "lake-seed1", 0, seed=1)
    write_hostile_run(made)
    with CreditStore(made / "one", 1.0) as store:
        lengths, versions = np.array([2], np.int32), np.array([[3, 4]], np.int32)
        floats = np.array([0.5, -2.0], np.float32)
        flags = np.array([TRAINED, TRAINED | 1], np.uint8)
        record = CreditRecord("traj-118", 9, lengths, versions, flags, floats, floats[:1], floats, floats**2)
        store.write(9, [record])
    return made


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    view = ViewApp([str(folder)], token=TOKEN)
    with TestClient(view.app, base_url="http://127.0.0.1") as opened:
        opened.headers[HEADER] = TOKEN
        yield opened
    view.close()


def read(client: TestClient, path: str, **query: Any) -> str:
    reply = client.get(path, params=query or None)
    assert reply.status_code == 200, reply.text
    return reply.text


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
        page = read(client, "/", x=axis)
        assert "Held-out success" in page and f">{label}<" in page
    assert page.count("<svg") > 4


def test_runs_that_differ_in_their_seed_are_one_band(client: TestClient) -> None:
    assert "lake (2 seeds)" in read(client, "/")
    lines = read(client, "/", seeds="lines")
    assert "(2 seeds)" not in lines and 'data-name="lake-seed1"' in lines


def test_pages_of_a_run_open(client: TestClient) -> None:
    for page in ("", "/trajectories", "/pipeline", "/curriculum", "/tree"):
        assert "one" in read(client, f"/run/one{page}")
    assert client.get("/run/none").status_code == 404
    reply = client.get("/run/one/trajectory", params={"id": "gone"})
    assert reply.status_code == 400 and "is not in the pool" in html.unescape(reply.text)


def test_a_trajectory_shows_its_credit_by_step_and_token(client: TestClient) -> None:
    page = read(client, "/run/one/trajectory", id="traj-118")
    assert "Credit by step" in page and "clipped" in page and "3–4" in page
    assert 'data-a="p2"' in page and 'data-a="n4"' in page  # 0.5 and −2
    assert "ratio 4" in page and "Siblings" in page
    assert "Credit by step" not in read(client, "/run/one/trajectory", id="traj-001")


def test_siblings_stand_side_by_side(client: TestClient) -> None:
    page = read(client, "/run/one/group", name="g1")
    assert all(f"say {number}" in page for number in (4, 5, 6, 7)) and "What they share" in page


def test_a_robot_with_cameras_has_an_animation(tmp_path: Path) -> None:
    steps = []
    for number in range(3):
        image = np.full((16, 16, 3), 80 * number, np.uint8)
        state = ArrayState({"camera": image, "joints": np.zeros(2, np.float32)}, "push the block")
        step = Step(state, ArrayAction(np.ones((2, 3), np.float32), 6), np.full(6, -1.0, np.float32))
        step.assign_reward({"task": 0.5})
        steps.append(step)
    run = write_run(tmp_path, "robot", 0)
    (run / "pool").mkdir()
    with open_pool(run / "pool") as pool:
        pool.add([Trajectory(Task("arm", {"n": 1}), steps, Status.SUCCESS, id="moves")], group_sizes=1)
    view = ViewApp([str(tmp_path)], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        page = read(client, "/run/robot/trajectory", id="moves")
        assert "animation of the episode" in page and "16×16×3 uint8" in page and "push the block" in page
        film = client.get("/run/robot/film", params={"id": "moves"})
        assert film.headers["content-type"] == "image/gif" and film.content.startswith(b"GIF8")
        frame = client.get("/run/robot/frame", params={"id": "moves", "step": "2"})
        assert frame.content.startswith(b"\x89PNG")
        assert client.get("/run/robot/frame", params={"id": "moves", "step": "9"}).status_code == 404
        assert client.get("/run/robot/image", params={"name": "../x"}).status_code == 404
    view.close()


def test_the_terminal_shows_a_run_and_a_command_needs_one_that_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(folder / "one"), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "steppo on lake" in shown and "update 5/5" in shown and "held-out" in shown
    assert main(["view", str(folder / "one"), "--do", "pause"]) == 2
    assert "no run listens in" in capsys.readouterr().err


def test_tags_are_written_to_the_pool(client: TestClient, folder: Path) -> None:
    fields = {"id": "traj-007", "tag": "keep"}
    assert client.post("/run/one/tags", json=fields).json() == {"tags": ["keep"]}
    with open_pool(folder / "one" / "pool") as pool:
        assert pool.get("traj-007").entry.tags == ("keep",)
    assert "traj-007" in read(client, "/run/one/trajectories", tag="keep")
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
        Row("lake", "<b>steppo</b>", "", "", 3, 3, False, after=figure, beside="grpo", difference=apart),
    ]
    content = {"name": "s", "title": "A study", "note": "", "num_runs": 6, "num_done": 6}
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table.md").write_text("")
    (tmp_path / "study" / "results.json").write_text(
        json.dumps({**content, "rows": [asdict(row) for row in rows]})
    )
    view = ViewApp([str(tmp_path / "study")], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        page = read(client, "/study/study")
        assert "+0.2" in page and "[+0.1, +0.3]" in page and "against grpo" in page
        assert "&lt;b&gt;steppo" in page and client.get("/study/other").status_code == 404


# --- what agents wrote -----------------------------------------------------------------------

MARKUP = ("<script>window", "<img src=x", "<b>env", "<i onclick", "<u>tag", "<b>judge", "<b>&", "<s>")
EPISODES = ("/trajectory?id=traj-evil", "/trajectory?id=traj-text")


@pytest.mark.parametrize("page", ["", "/trajectories", *EPISODES, "/pipeline", "/curriculum", "/tree"])
def test_whatever_agents_wrote_is_text(client: TestClient, page: str) -> None:
    from urllib.parse import quote

    text = read(client, f"/run/{quote(NAME)}{page}")
    assert [markup for markup in MARKUP if markup in text] == []
    assert not set("\x00\x1b\x07\u202e") & set(text)
    if page.startswith("/trajectory?"):
        assert "&lt;script&gt;window.hit=1" in text and "␀␛[2J⟨U+202E⟩" in text


def test_filters_are_shown_as_text_too(client: TestClient) -> None:
    page = read(client, "/run/one/trajectories", text=EVIL, task='"><script>', min_version="<x>")
    assert "<script>" not in page and "min_version: &#39;&lt;x&gt;&#39; is not a whole number" in page


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    shown = show_controls(text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(0x202A <= ord(char) <= 0x202E or 0x2066 <= ord(char) <= 0x2069 for char in shown)


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


def test_a_search_reads_a_finished_trajectory_once(folder: Path) -> None:
    with open_pool(folder / "one" / "pool") as pool, open_pool(folder / "one" / "pool") as other:
        index = TextIndex(pool)
        index.start_reading()
        assert index.wait_until_read(60)
        found = find_rows(other, {"text": "say 11"}, index=index)
        assert [row.id for row in found.rows[:2]] == ["traj-119", "traj-118"] and len(found.rows) == 11
        index.close()
        known = index.get_texts(pool.list_seqs())
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


# --- reading ---------------------------------------------------------------------------------


def test_metrics_are_read_as_they_grow_and_again_after_a_rewind(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = b'{"kind": "update", "update": %d, "time_s": 1, "env_steps": 2, "reward": 0.5}\n'
    tail = MetricTail(path)
    assert tail.read_new() == []
    path.write_bytes(line % 1 + line % 2 + b'{"kind": "upd')
    assert [entry.update for entry in tail.read_new()] == [1, 2]
    path.write_bytes(line % 1 + line % 2 + line % 3)
    assert [entry.update for entry in tail.read_new()] == [1, 2, 3]
    path.write_bytes(line % 7)
    assert [entry.update for entry in tail.read_new()] == [7]


def test_the_stamp_changes_with_the_run(client: TestClient, folder: Path) -> None:
    before = client.get("/stamp", params={"run": "lake-seed1"}).json()
    assert client.get("/stamp", params={"run": "lake-seed1"}).json() == before
    (folder / "lake-seed1" / "timeline.json").write_text('{"seconds": 1, "rows": []}')
    assert client.get("/stamp", params={"run": "lake-seed1"}).json() != before


def test_a_view_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run and no pool"):
        RunShelf([str(tmp_path)])


def test_a_pool_alone_is_shown(folder: Path) -> None:
    shelf = RunShelf([str(folder / "one" / "pool")])
    assert [run.is_pool_only for run in shelf.runs.values()] == [True]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float]) -> None:
    thin = thin_track(Track("t", np.arange(len(values), dtype=float), np.array(values)), num_buckets=20)
    assert min(thin.y) == min(values) and max(thin.y) == max(values)
    assert len(thin.x) <= max(40, len(values) if len(values) <= 40 else 40)


def test_seeds_of_different_lengths_share_the_part_that_all_have() -> None:
    one = Track("a", np.arange(10.0), np.arange(10.0))
    other = Track("b", np.arange(0.0, 6.0), 2 * np.arange(0.0, 6.0))
    x, rows = align_tracks([one, other])
    assert x[0] == 0 and x[-1] == 5 and rows[:, -1].tolist() == [5.0, 10.0]


@given(st.text())
def test_texts_of_tokens_are_the_whole_text(text: str) -> None:
    letters = {byte: letter for letter, byte in map_byte_letters().items()}
    reader = TokenReader(letters, {})
    assert (
        "".join(reader.split_text(list(text.encode("utf-8", "replace"))))
        == text.encode("utf-8", "replace").decode()
    )


def test_the_tree_counts_what_is_shared() -> None:
    tree = build_batch_tree([make_episode(1), make_episode(1), make_episode(2)])
    assert tree is not None and (tree.num_without, tree.num_tokens) == (18, 9)
    assert sum((b.stop - b.start) * b.num_sequences for b in tree.blocks) == 18
    assert sum(b.stop - b.start for b in tree.blocks) == 9


def test_sparklines_have_the_extremes() -> None:
    assert draw_sparkline([0.0, 1.0], width=2) == "▁█"
    assert draw_sparkline([float("nan")]) == ""


def test_a_finished_run_has_its_ending_as_state(folder: Path) -> None:
    assert ViewedRun("one", folder / "one").state == "unfinished"
