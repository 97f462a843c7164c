"""What the view reads: metrics as they grow, runs, pools, and the numbers of its charts."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.view.made_runs import make_episode, write_run

from stepwell.core import ImageSpan, Step, Trajectory
from stepwell.core.errors import InputError
from stepwell.monitors.summary import Summary, write_summary
from stepwell.pool.credit_reading import StepCredit
from stepwell.rendering.token_text import map_byte_letters
from stepwell.runs.run_lock import hold_run_folder
from stepwell.view.app import ViewApp
from stepwell.view.comparison import Track, align_tracks, thin_track
from stepwell.view.credit_chart import draw_credit_chart
from stepwell.view.run_files import MetricTail, ViewedRun
from stepwell.view.run_finder import RunIndex
from stepwell.view.terminal import draw_sparkline
from stepwell.view.token_reader import TokenReader
from stepwell.view.trajectory_content import show_steps
from stepwell.view.tree_chart import build_batch_tree

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
        RunIndex([str(tmp_path)])


def test_a_pool_alone_is_shown(folder: Path) -> None:
    shelf = RunIndex([str(folder / "one" / "pool")])
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


def test_a_large_batch_is_drawn_by_its_first_whole_trajectories() -> None:
    steps = [Step.from_tokens([1, i], [2]) for i in range(2, 62)]
    tree = build_batch_tree([replace(make_episode(1), steps=steps) for _ in range(5)])
    assert tree is not None and (tree.num_trajectories, tree.num_sequences) == (2, 120)


def test_different_images_are_not_shared_in_the_tree() -> None:
    def look(image: str) -> Trajectory:
        spans = (ImageSpan(image=image * 32, start=1, length=2),)
        step = Step.from_tokens(np.array([1, 9, 9, 2]), np.array([3]), images=spans)
        return replace(make_episode(1), steps=[step])

    alike, different = build_batch_tree([look("a"), look("a")]), build_batch_tree([look("a"), look("b")])
    assert alike is not None and alike.num_tokens == 5
    assert different is not None and different.num_tokens == 9  # only the token before the image is shared


def show_prompts(*prompts: list[int], images: tuple[str, ...] = ()) -> list[tuple[int, str, list[str]]]:
    """How steps with these prompts and the action 9 are shown; 1 is a, 2 is b, and 0 begins a message."""
    reader = TokenReader({number: chr(96 + number) for number in range(1, 10)}, {0: "|"})
    spans = [(ImageSpan(name * 32, start=2, length=1),) for name in images] or [()] * len(prompts)
    steps = [Step.from_tokens(prompt, [9], images=span) for prompt, span in zip(prompts, spans, strict=True)]
    return [
        (step.num_shared, step.prompt, step.images)
        for step in show_steps(steps, range(len(steps)), None, reader)
    ]


def test_a_prompt_that_goes_on_is_shown_from_where_it_does() -> None:
    assert show_prompts([0, 1, 2], [0, 1, 2, 9, 0, 3]) == [(0, "|ab", []), (4, "|c", [])]


def test_a_prompt_that_does_not_go_on_is_shown_from_the_message_that_changed() -> None:
    """Not in the middle of its line: the line before is the context of what changed."""
    shown = show_prompts([0, 1, 0, 2, 3, 4], [0, 1, 0, 2, 3, 5])
    assert shown == [(0, "|a|bcd", []), (5, "|bce", [])]


def test_an_image_that_changed_is_shown_though_its_tokens_are_the_same() -> None:
    (_, first, _), (shared, second, images) = show_prompts([0, 1, 7, 2], [0, 1, 7, 2], images=("a", "b"))
    assert first == second == "|a⟨image⟩b"
    assert (shared, images) == (2, ["b" * 32])


def test_credit_is_drawn_with_a_bar_per_advantage_and_a_dot_per_value() -> None:
    rows = [
        StepCredit(i, 3, 0, 0, value, None, advantage, 1.0, 0.0, True)
        for i, (value, advantage) in enumerate([(0.2, 0.5), (0.4, -0.25), (0.9, None)])
    ]
    drawn = ElementTree.fromstring(draw_credit_chart(rows))
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[:2] == ["step 0: advantage +0.5", "step 1: advantage -0.25"]
    assert titles[2:] == ["step 0: value 0.2", "step 1: value 0.4", "step 2: value 0.9"]
    dots = [float(dot.attrib["cy"]) for dot in drawn.iter("{http://www.w3.org/2000/svg}circle")]
    assert dots[0] > dots[1] > dots[2]  # higher values are higher
    assert draw_credit_chart(rows[:1]) == ""


def test_sparklines_have_the_extremes() -> None:
    assert draw_sparkline([0.0, 1.0], width=2) == "▁█"
    assert draw_sparkline([float("nan")]) == ""


def hold_until_killed(folder: Path, ready: Connection) -> None:
    with hold_run_folder(folder):
        ready.send("held")
        ready.recv()


def test_a_run_without_a_summary_is_running_as_long_as_its_process_is_there(tmp_path: Path) -> None:
    run = ViewedRun("one", write_run(tmp_path, num_episodes=0))
    assert run.state == "unfinished"
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=hold_until_killed, args=(run.folder, there))
    child.start()
    here.recv()
    assert run.state == "running"
    child.kill()
    child.join()
    assert run.state == "unfinished"


def test_a_run_that_is_resumed_runs_and_then_has_its_ending_as_state(tmp_path: Path) -> None:
    run = ViewedRun("one", write_run(tmp_path, num_episodes=0))
    summary = Summary(0.1, None, 10, 1.0, 0, "steppo", "lake", status="interrupted")
    write_summary(run.folder, summary)
    assert run.state == "interrupted"
    with hold_run_folder(run.folder):
        assert run.state == "running"
        write_summary(run.folder, replace(summary, status="stopped_early"))
        assert run.state == "stopped early"
    assert run.state == "stopped early"


def test_the_stamp_says_whether_runs_are_live(tmp_path: Path) -> None:
    write_run(tmp_path, "one", 0)
    write_summary(tmp_path / "one", Summary(0.1, 0.9, 10, 1.0, 0, "steppo", "lake"))
    write_run(tmp_path, "two", 4)
    places = [str(tmp_path), str(tmp_path / "two" / "pool")]
    view = ViewApp(places, token=None)

    def read_states(*names: str) -> tuple[bool, str]:
        reply = client.get("/stamp", params={"run": names}).json()
        return reply["is_live"], reply["states"]

    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        assert read_states("one") == (False, "finished")
        assert read_states("two") == (False, "unfinished")
        assert read_states("pool") == (False, "")
        assert read_states("one", "two") == (False, "0 of 2 live")
        with hold_run_folder(tmp_path / "two"):
            assert read_states("two") == (True, "live")
            assert read_states("one", "two") == (True, "1 of 2 live")
    view.close()
