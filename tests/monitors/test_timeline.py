"""Who worked when: sums are exact, spans are bounded, and a bubble is a gap in the image."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stepwell.core import EncodingError
from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.console import describe_sync, describe_workers, make_live_view
from stepwell.monitors.progress import Progress
from stepwell.monitors.timeline import MAX_ROWS, draw_timeline, merge_spans, read_timeline, write_timeline
from stepwell.workers.busy_times import BusyTimes


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_calls_that_overlap_count_once_and_idle_workers_count() -> None:
    clock = Clock()
    spans = BusyTimes(clock)
    for worker in ("a", "b"):
        spans.register("simulators", worker)
    before = spans.take_snapshot()
    spans.begin("simulators", "a")
    clock.now = 2.0
    spans.begin("simulators", "a")
    clock.now = 3.0
    spans.end("simulators", "a")
    clock.now = 4.0
    spans.end("simulators", "a")
    clock.now = 8.0
    assert before.compute_shares(spans.take_snapshot()) == {"simulators": 4.0 / (2 * 8.0)}


def test_only_the_last_spans_are_kept_and_sums_stay_exact() -> None:
    clock = Clock()
    spans = BusyTimes(clock, keep=10)
    spans.register("generators", "g")
    start = spans.take_snapshot()
    for i in range(100):
        clock.now = float(i)
        with spans.track("generators", "g"):
            clock.now += 0.25
    clock.now = 100.0
    assert start.compute_shares(spans.take_snapshot())["generators"] == pytest.approx(0.25)
    timeline = spans.build_timeline(last_s=1000.0)
    (row,) = timeline["rows"]
    assert len(row["spans"]) == 10 and timeline["seconds"] == 10.0
    assert row["spans"][0] == [0.0, 0.25]


def test_a_bubble_is_a_gap_and_what_was_kept_is_drawn(tmp_path: Path) -> None:
    rows = [
        {"group": "simulators", "worker": "simulator <0>", "spans": [[0.0, 4.0], [6.0, 10.0]]},
        {"group": "trainers", "worker": "trainer", "spans": [[4.0, 6.0]]},
    ]
    write_timeline(tmp_path, {"seconds": 10.0, "rows": rows})
    found = read_timeline(tmp_path)
    assert found is not None
    chart = draw_timeline(found, 1148)  # a thousand pixels for ten seconds
    boxes = [
        (float(x), float(w)) for x, w in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', chart)
    ]
    assert boxes == [(104, 1000), (104, 400), (704, 400), (104, 1000), (504, 200)]
    assert "80 %" in chart and "20 %" in chart and "simulator &lt;0&gt;" in chart


def test_a_run_without_groups_has_no_timeline_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    assert read_timeline(tmp_path) is None
    (tmp_path / "timeline.json").write_text('{"seconds": 1, "rows": [{"group": "x"}]}')
    with pytest.raises(EncodingError, match=r"timeline.json is damaged"):
        read_timeline(tmp_path)


def test_very_many_workers_are_left_out_and_counted() -> None:
    rows = [{"group": "simulators", "worker": f"s{i}", "spans": [(0.0, 1.0)]} for i in range(60)]
    rows += [{"group": "trainers", "worker": "trainer", "spans": [(0.0, 1.0)]}]
    chart = draw_timeline({"seconds": 1.0, "rows": rows}, 800)
    assert f"and {61 - MAX_ROWS} more workers" in chart and ">trainer<" in chart


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5)), max_size=30), st.floats(0, 3))
def test_merging_covers_the_same_moments_with_no_small_gaps(
    pairs: list[tuple[float, float]], gap: float
) -> None:
    spans = [(start, start + length) for start, length in pairs]
    found = merge_spans(spans, gap)
    assert all(any(a <= start and end <= b for a, b in found) for start, end in spans)
    assert all(found[i + 1][0] - found[i][1] >= gap for i in range(len(found) - 1))


def test_a_line_per_group_tells_use_and_queue(tmp_path: Path) -> None:
    values = {
        "simulators/busy": 0.934,
        "simulators/episodes": 31.0,
        "simulators/memory_mb": 1234.0,
        "simulators/restarts": 0.0,
        "generators/busy": 0.4,
        "generators/queue": 12.0,
        "generators/restarts": 2.0,
        "trainers/busy": 0.7,
        "trainers/queue": 3.0,
        "sync/trainer_wait_s": 0.0312,
        "sync/pause_max_s": 0.004,
        "sync/sent_mb": 1234.5,
    }
    told = "trainer waited 0.031 s, generators paused 0.004 s, 1,234.5 MB sent"
    assert describe_sync(values) == [("weights", told)] and describe_sync({"success": 1.0}) == []
    assert describe_workers(values) == [
        ("simulators", "93 % busy, 31 episodes, 1,234 MB"),
        ("generators", "40 % busy, 12 waiting, 2 restarts"),
        ("trainers", "70 % busy, 3 waiting"),
    ]
    assert describe_workers({"success": 1.0}) == []
    progress = Progress(RunInfo(tmp_path, "run", "lake", "grpo", 0, 10))
    progress.add_entry(LogEntry("update", 1, 2.0, 30, values))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(make_live_view(progress, console))
    text = console.export_text()
    assert "40 % busy, 12 waiting" in text and "generators paused 0.004 s" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2.18, ["0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s"]),
        (18_000.0, ["0 s", "5,000 s", "10,000 s", "15,000 s"]),
    ],
)
def test_the_seconds_below_the_chart_are_round(seconds: float, words: list[str]) -> None:
    rows = [{"worker": "trainer", "group": "trainers", "spans": [[0.0, 1.0]]}]
    assert re.findall(r">([\d.,]+ s)<", draw_timeline({"seconds": seconds, "rows": rows}, 860)) == words
