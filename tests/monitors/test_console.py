"""The console is live at a terminal and plain, searchable lines anywhere else."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.console import ConsoleMonitor, draw_sparkline, format_number
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.progress import Progress, format_duration

INFO = RunInfo(Path("runs/first"), "first", "frozenlake", "steppo", 3, 40)
FIGURES = {
    "success": 0.5,
    "reward": 0.75,
    "reward/outcome": 0.5,
    "reward/format": 0.25,
    "entropy": 0.91,
    "kl": 0.012,
    "tokens_per_s": 41234.0,
}


def update(k: int, **more: float) -> LogEntry:
    return LogEntry("update", k, 2.0 * k, 100 * k, {**FIGURES, **more}, left_s=2.0 * (40 - k))


def evaluation(k: int, success: float) -> LogEntry:
    values = {"success": success, "low": success - 0.05, "high": success + 0.05}
    return LogEntry("eval", k, 2.0 * k, 100 * k, values, left_s=2.0 * (40 - k))


def shown(*, terminal: bool, entries: list[LogEntry], note: str = "", **how: float) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, legacy_windows=False, _environ={})
    monitor = ConsoleMonitor(console, **how)  # type: ignore[arg-type]
    monitor.start(INFO)
    for entry in entries:
        monitor.record(entry)
    if note:
        monitor.note(note)
    monitor.close()
    return file.getvalue()


def test_without_a_terminal_there_are_lines_and_no_control_characters() -> None:
    entries = [update(k) for k in range(1, 41)]
    entries.insert(20, evaluation(20, 0.4))
    text = shown(terminal=False, entries=entries, note="be\x1b[31mware\x07", every=20, every_s=1e9)
    assert all(char == "\n" or char.isprintable() for char in text)
    lines = text.splitlines()
    assert lines[0] == "first: steppo on frozenlake, seed 3, in runs/first"
    assert [re.findall(r"update (\d+)/40", line) for line in lines[1:5]] == [["1"], ["20"], ["20"], ["40"]]
    assert lines[2].split("  ")[-7:] == [
        "update 20/40",
        "success 0.50",
        "reward 0.75",
        "entropy 0.91",
        "kl 0.0120",
        "tokens/s 41,234",
        "left 0:40",
    ]
    assert lines[3].endswith("update 20/40  held-out 0.40 [0.35, 0.45]  best 0.40 at 20  left 0:40")
    assert lines[5] == "be [31mware "


def test_a_slow_run_is_heard_of_by_time_and_a_fast_one_by_count() -> None:
    entries = [update(k) for k in range(1, 8)]  # two seconds each
    lines = shown(terminal=False, entries=entries, every=1000, every_s=6.0).splitlines()[1:]
    assert [re.findall(r"update (\d+)/", line) for line in lines] == [["1"], ["4"], ["7"]]


def test_at_a_terminal_the_view_holds_what_a_watcher_asks() -> None:
    entries = [LogEntry("warm_start", 0, 0.0, 0, {"loss": 1.5}), update(1), evaluation(1, 0.2)]
    entries += [update(2), evaluation(2, 0.6), update(3), evaluation(3, 0.5)]
    text = shown(terminal=True, entries=entries, note="watch [this]")
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    last = plain[plain.rindex("update 3/40") :]
    for words in ("train 0.50", "held-out 0.50 [0.45, 0.55]", "best 0.60 at 2", "▂▅▅", "all 0.75"):
        assert words in last
    for words in ("outcome 0.50", "format 0.25", "entropy 0.91", "KL 0.0120", "tokens/s 41,234", "1:14 left"):
        assert words in last
    assert "watch [this]" in plain


def test_a_curve_is_drawn_from_the_warm_start_on() -> None:
    checks = [(10, 0.0, 0.0), (20, 0.6, 0.0), (30, 1.0, 0.3)]
    entries = [
        make_entry("warm_start", 0, float(step), step=step, num_steps=300, format_share=form, success=solved)
        for step, form, solved in checks
    ]
    text = shown(terminal=True, entries=entries)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"learning\s+success ▁▁▃  in form ▁▅█", plain), plain
    later = Progress(INFO)
    for entry in [*entries, update(1)]:
        later.add_entry(entry)
    assert later.shares == {"success": [0.0, 0.0, 0.3, 0.5], "format_share": [0.0, 0.6, 1.0]}


def test_a_phase_lasts_until_the_next_entry() -> None:
    progress = Progress(INFO)
    assert progress.title == "starting"
    progress.add_entry(LogEntry("warm_start", 0, 1.0, 0))
    assert progress.title == "warm start"
    progress.add_entry(update(4))
    progress.phase = "evaluating"
    assert progress.title == "evaluating (update 4/40)"
    progress.add_entry(evaluation(4, 0.3))
    assert progress.title == "update 4/40"


def make_entry(kind: str, k: int, time_s: float, **values: float) -> LogEntry:
    return LogEntry(kind, k, time_s, 0, values)  # type: ignore[arg-type]


def test_every_line_tells_the_time_left_of_the_whole_run_as_soon_as_it_is_known() -> None:
    warm = make_entry("warm_start", 0, 9.0, step=4.0, num_steps=50.0)
    before = replace(evaluation(0, 0.1), time_s=30.0, left_s=80.0)
    entries = [warm, replace(warm, time_s=20.0, left_s=95.0), before, update(1)]
    told = shown(terminal=False, entries=entries, every_s=0.0).splitlines()[1:]
    assert "left" not in told[0]
    endings = [line.rpartition("  ")[2] for line in told[1:]]
    assert endings == ["left about 1:35", "left about 1:20", "left 1:18"]


def test_the_time_left_counts_down_between_two_entries() -> None:
    progress = Progress(INFO)
    assert progress.describe_left() == ""
    progress.add_entry(update(10))
    assert progress.describe_left(since_s=15.0) == "0:45"
    assert progress.describe_left(since_s=90.0) == "0:00"


def test_a_warm_start_says_how_far_it_is() -> None:
    entries = [make_entry("warm_start", 0, 9.0, step=20.0, num_steps=50.0, loss=1.5)]
    assert "warm start 20/50  loss 1.50" in shown(terminal=False, entries=entries)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True, entries=entries))
    assert "warm start 20/50" in plain


def test_a_run_that_continues_knows_its_earlier_best(tmp_path: Path) -> None:
    file = JsonlMonitor()
    file.start(replace(INFO, folder=tmp_path))
    for entry in (update(1), evaluation(1, 0.9), update(2), evaluation(2, 0.95)):
        file.record(entry)
    file.close()
    monitor = ConsoleMonitor(Console(file=(out := io.StringIO()), width=120))
    monitor.start(replace(INFO, folder=tmp_path, resumed_from=1))  # what came after it is done again
    monitor.record(update(2))
    monitor.record(evaluation(2, 0.3))
    monitor.close()
    assert "best 0.90 at 1" in out.getvalue() and "0.95" not in out.getvalue()


def test_an_evaluation_that_is_not_a_number_is_never_the_best() -> None:
    progress = Progress(INFO)
    for k, success in enumerate([float("nan"), 0.3, 0.3]):
        progress.add_entry(evaluation(k, success))
    assert progress.best is not None and progress.best.update == 1


def test_a_console_that_cannot_write_unicode_gets_what_it_can() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True), _environ={})
    ConsoleMonitor(console).note("über 3 → 4")
    assert raw.getvalue() == b"?ber 3 ? 4\n"


@given(st.floats())
def test_every_figure_is_short_and_close(value: float) -> None:
    text = format_number(value)
    if abs(value) < 1e9:
        assert len(text) <= 14 and float(text.replace(",", "")) == pytest.approx(value, rel=0.06)


def test_durations_and_sparklines_read_as_people_write_them() -> None:
    assert [format_duration(s) for s in (0, 42.4, 725, 11220)] == ["0:00", "0:42", "12:05", "3:07:00"]
    assert draw_sparkline([0.0, 0.5, 1.0, float("nan"), 2.0]) == "▁▅█ █"
