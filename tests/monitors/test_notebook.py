"""A notebook's display of a run: one block, updated in place, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.notebook import NotebookMonitor, draw_progress, is_notebook
from stepwell.monitors.progress import Progress

INFO = RunInfo(Path("runs/first"), "first <b>", "lake", "grpo", 0, num_updates=4)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    config = Config()
    config.HistoryManager.enabled = False
    yield InteractiveShell.instance(config=config)
    InteractiveShell.clear_instance()


def update(number: int, success: float) -> LogEntry:
    return LogEntry("update", number, float(number), 10 * number, {"success": success, "reward": success})


def held_out(number: int, success: float) -> LogEntry:
    return LogEntry("eval", number, float(number), 10 * number, {"success": success, "low": 0.0, "high": 1.0})


def test_one_display_is_updated_in_place(shell: InteractiveShell) -> None:
    with capture_output() as captured:
        monitor = NotebookMonitor(every_s=0.0)
        monitor.start(INFO)
        for number in range(1, 5):
            monitor.record(update(number, number / 4))
        monitor.record(held_out(4, 0.75))
        monitor.note("it <i>learns</i>")
        monitor.close()
    first, *others = captured.outputs
    assert not first.update and others and all(output.update for output in others)
    assert len({output.transient["display_id"] for output in captured.outputs}) == 1
    html = others[-1].data["text/html"]
    assert "first &lt;b&gt;" in html and "it &lt;i&gt;learns&lt;/i&gt;" in html and "<script" not in html
    assert "held-out success: 0.75" in html and "0:04" in html
    assert others[-1].data["text/plain"].endswith("held-out 0.75 [0.00, 1.00]  best 0.75 at 4")


def test_drawing_is_limited_in_time(shell: InteractiveShell) -> None:
    with capture_output() as captured:
        monitor = NotebookMonitor(every_s=1000.0)
        monitor.start(INFO)
        for number in range(1, 5):
            monitor.record(update(number, 0.5))
        monitor.close()
    assert len(captured.outputs) == 2  # the start and the end


def test_a_terminal_is_no_notebook(shell: InteractiveShell) -> None:
    assert not is_notebook()


def test_a_run_without_figures_yet_is_drawn_without_a_chart() -> None:
    html = draw_progress(Progress(INFO), [], [])
    assert "<svg" not in html and "starting" in html and 'max="4"' in html
