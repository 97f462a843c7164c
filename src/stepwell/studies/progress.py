"""Progress of a study: a live table at a terminal, plain lines elsewhere.

The progress of a run is read from the last lines of its `metrics.jsonl`. There is one plain line for each
run that ends, and one a minute about the runs under way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from stepwell.config.run import RunConfig
from stepwell.monitors import jsonl
from stepwell.monitors.progress import format_duration
from stepwell.studies.processes import EndedRun, RunWorker

LIVE_EVERY_S, PLAIN_EVERY_S = 1.0, 60.0
_TAIL = 1 << 14


class StudyProgress:
    """Shows a session of a study on `console`."""

    def __init__(self, total: int, done: int, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._is_live = self.console.is_terminal and not self.console.is_dumb_terminal
        self._total, self._done, self._failed = total, done, 0
        self._began = self._looked_at = time.monotonic()
        self._live = Live(console=self.console, auto_refresh=False) if self._is_live else None
        if self._live is not None:
            self._live.start()

    def say(self, words: str) -> None:
        """Print one line."""
        self.console.print(words, markup=False, soft_wrap=True)

    def report_end(self, ended: EndedRun, status: str, figures: str) -> None:
        """Print the line of a run that has ended in this session."""
        self._failed += bool(ended.problem)
        self._done += not ended.problem and not status
        count = f"{self._done}/{self._total}"
        what = f"failed: {ended.problem}" if ended.problem else status or figures
        self.say(f"{format_duration(self._measure_elapsed_s()):>8}  {count:>7}  {ended.run.name}  {what}")

    def tick(self, workers: Sequence[RunWorker]) -> None:
        """Show the runs under way, if it is time for that."""
        every_s = LIVE_EVERY_S if self._live is not None else PLAIN_EVERY_S
        if time.monotonic() - self._looked_at < every_s:
            return
        self._looked_at = time.monotonic()
        if self._live is not None:
            self._live.update(self._make_table(workers), refresh=True)
            return
        views = "; ".join(
            f"{w.run.name} {_describe_view(read_progress(w.folder, w.run.config))}" for w in workers
        )
        self.say(
            f"{format_duration(self._measure_elapsed_s()):>8}  {self._done}/{self._total}  running: {views}"
        )

    def close(self) -> None:
        if self._live is not None:
            self._live.update("", refresh=True)
            self._live.stop()

    def _measure_elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _make_table(self, workers: Sequence[RunWorker]) -> Table:
        left = self._total - self._done - self._failed - len(workers)
        failed = f", {self._failed} failed" if self._failed else ""
        counts = f"{self._done} of {self._total} runs done{failed}, {max(left, 0)} waiting"
        title = f"{counts}, {format_duration(self._measure_elapsed_s())}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("run", "phase", "done", "held-out"):
            table.add_column(name, justify="right" if name == "done" else "left")
        for worker in workers:
            view = read_progress(worker.folder, worker.run.config)
            table.add_row(worker.run.name, view["phase"], f"{view['share']:.0%}", view["success"])
        return table


def read_progress(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Phase, progress (of updates or of the step budget, whichever is further) and last success."""
    entries = _read_tail(folder / jsonl.FILE_NAME)
    if not entries:
        return {"phase": "starting", "share": 0.0, "success": ""}
    last = entries[-1]
    shares = [last["update"] / max(config.train.num_updates, 1)]
    if config.train.max_env_steps:
        shares.append(last["env_steps"] / config.train.max_env_steps)
    evals = [
        entry["success"] for entry in entries if entry["kind"] == "eval" and entry["success"] is not None
    ]
    phase = "warm start" if last["kind"] == "warm_start" else f"update {last['update']}"
    return {"phase": phase, "share": min(max(shares), 1.0), "success": f"{evals[-1]:.2f}" if evals else ""}


def _describe_view(view: dict[str, Any]) -> str:
    held_out = f" held-out {view['success']}" if view["success"] else ""
    return f"{view['phase']} ({view['share']:.0%}){held_out}"


def _read_tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a file that is being written."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - _TAIL)
        file.seek(start)
        lines = file.read().split(b"\n")[1 if start else 0 : -1]
    return [json.loads(line) for line in lines]
