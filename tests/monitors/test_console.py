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
from stepwell.monitors.console import ConsoleMonitor, draw_sparkline, format_duration, format_number
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.progress import Progress

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
    return LogEntry("update", k, 2.0 * k, 100 * k, {**FIGURES, **more})


def evaluation(k: int, success: float) -> LogEntry:
    values = {"success": success, "low": success - 0.05, "high": success + 0.05}
    return LogEntry("eval", k, 2.0 * k, 100 * k, values)


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
    assert lines[3].endswith("update 20/40  held-out 0.40 [0.35, 0.45]  best 0.40 at 20")
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


def test_time_left_follows_the_recent_pace_and_the_time_limit() -> None:
    progress = Progress(INFO)
    progress.add_entry(update(1))
    assert progress.left_s is None
    progress.add_entry(update(11))
    assert progress.left_s == pytest.approx(2.0 * 29)
    limited = Progress(RunInfo(Path("r"), "r", "e", "s", 0, 40, {"train": {"max_seconds": 30.0}}))
    limited.add_entry(update(1))
    limited.add_entry(update(11))
    assert limited.left_s == pytest.approx(30.0 - 22.0)


def make_entry(kind: str, k: int, time_s: float, **values: float) -> LogEntry:
    return LogEntry(kind, k, time_s, 0, values)  # type: ignore[arg-type]


def test_time_left_is_right_from_the_first_update_on_and_counts_evaluations() -> None:
    settings = {"eval": {"num_tasks": 8, "every": 10}, "train": {"max_seconds": None}}
    progress = Progress(RunInfo(Path("r"), "r", "e", "s", 0, 40, settings))
    progress.add_entry(make_entry("warm_start", 0, 60.0, step=10.0, num_steps=10.0))
    progress.add_entry(make_entry("eval", 0, 65.0, success=0.1))
    progress.add_entry(make_entry("update", 1, 67.0))
    assert progress.left_s == pytest.approx(39 * 2.0 + 4 * 5.0)  # after 10, 20, 30 and 40 updates
    progress.add_entry(make_entry("update", 10, 85.0))
    assert progress.left_s == pytest.approx(30 * 2.0 + 4 * 5.0)  # that of update 10 is still to come
    progress.add_entry(make_entry("eval", 10, 88.0, success=0.2))
    assert progress.left_s == pytest.approx(30 * 2.0 + 3 * 3.0)
    progress.add_entry(make_entry("eval", 30, 197.0, success=0.2))
    progress.add_entry(make_entry("update", 40, 217.0))
    assert progress.left_s == pytest.approx(progress.eval_s) and progress.eval_s > 0  # the one at the end
    progress.add_entry(make_entry("eval", 40, 220.0, success=0.2))
    assert progress.left_s == 0.0


def test_a_resumed_run_counts_the_evaluations_after_its_first_update() -> None:
    settings = {"eval": {"num_tasks": 8, "every": 10}}
    progress = Progress(RunInfo(Path("r"), "r", "e", "s", 0, 45, settings))
    progress.add_entry(make_entry("update", 21, 2.0, **{"time/update_s": 2.0}))
    progress.eval_s = 5.0
    assert progress.left_s == pytest.approx(24 * 2.0 + 3 * 5.0)  # after 30, 40 and 45 updates


def test_time_left_ends_at_the_limit_of_environment_steps() -> None:
    settings = {"eval": {"num_tasks": 8, "every": 10}, "train": {"max_env_steps": 3000}}
    progress = Progress(RunInfo(Path("r"), "r", "e", "s", 0, 200, settings))
    progress.add_entry(LogEntry("eval", 0, 5.0, 0, {"success": 0.1}))
    progress.add_entry(LogEntry("update", 1, 7.0, 100, {}))
    assert progress.left_s == pytest.approx(29 * 2.0)  # 30 updates of 100 steps; no evaluation was timed
    progress.add_entry(LogEntry("update", 10, 25.0, 1000, {}))
    progress.add_entry(LogEntry("eval", 10, 30.0, 1000, {"success": 0.2}))
    assert progress.left_s == pytest.approx(20 * 2.0 + 2 * 5.0)
    progress.add_entry(LogEntry("eval", 20, 60.0, 2000, {"success": 0.2}))
    progress.add_entry(LogEntry("update", 30, 80.0, 3000, {}))
    progress.add_entry(LogEntry("eval", 30, 85.0, 3000, {"success": 0.2}))
    assert progress.left_s == 0.0


def test_a_time_limit_counts_from_the_end_of_the_warm_start() -> None:
    progress = Progress(RunInfo(Path("r"), "r", "e", "s", 0, 270, {"train": {"max_seconds": 215.0}}))
    progress.add_entry(make_entry("warm_start", 0, 300.0, step=96.0, num_steps=96.0))
    progress.add_entry(make_entry("update", 1, 302.0))
    assert progress.left_s == pytest.approx(213.0)


def test_the_time_left_is_what_was_expected_and_after_a_quarter_of_the_updates_that_of_the_pace() -> None:
    progress = Progress(RunInfo(Path("r"), "r", "e", "s", 0, 40, expected_s=100.0))
    assert progress.left_s == 100.0
    progress.add_entry(make_entry("warm_start", 0, 30.0, step=20.0, num_steps=50.0))
    assert progress.left_s == 70.0
    progress.add_entry(make_entry("update", 1, 35.0))
    assert progress.left_s == pytest.approx(0.1 * 39 * 5.0 + 0.9 * 65.0)
    progress.add_entry(make_entry("update", 10, 80.0))
    assert progress.left_s == pytest.approx(30 * 5.0)


def test_a_warm_start_says_how_far_it_is() -> None:
    entries = [make_entry("warm_start", 0, 9.0, step=20.0, num_steps=50.0, loss=1.5)]
    assert "warm start 20/50  loss 1.50" in shown(terminal=False, entries=entries)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True, entries=entries))
    assert "warm start 20/50" in plain


def test_a_warm_start_says_how_much_is_left_of_it_at_most() -> None:
    entries = [
        make_entry("warm_start", 0, 9.0, step=10.0, num_steps=50.0),
        make_entry("warm_start", 0, 29.0, step=20.0, num_steps=50.0),
    ]
    told = shown(terminal=False, entries=entries).splitlines()
    assert "left" not in told[1]  # its pace is not known yet
    assert told[2].endswith("warm start 20/50  at most 1:00 left of it")
    progress = Progress(INFO)
    for entry in (*entries, make_entry("eval", 0, 33.0, success=0.1)):
        progress.add_entry(entry)
    assert progress.warm_start_left_s is None


def test_a_long_first_update_is_forgotten_with_the_second() -> None:
    progress = Progress(INFO)
    progress.add_entry(make_entry("warm_start", 0, 0.0))
    for k, time_s in ((1, 13.0), (2, 15.0)):
        progress.add_entry(make_entry("update", k, time_s))
    assert progress.left_s == pytest.approx(38 * 2.0)


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


def test_single_long_updates_do_not_move_the_time_left() -> None:
    progress, time_s = Progress(INFO), 0.0
    for k in range(1, 21):
        time_s += 30.0 if k in (9, 15) else 2.0
        progress.add_entry(make_entry("update", k, time_s))
    assert progress.left_s == pytest.approx(20 * 2.0)


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
