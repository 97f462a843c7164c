"""The terminal dashboard: a run's figures with small curves, drawn again twice a second; keys control it.

p pause   r resume   c checkpoint   e evaluate   s stop after this update   q leave (the run goes on)
"""

from __future__ import annotations

import math
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepwell.core.errors import StepwellError
from stepwell.monitors.progress import format_duration
from stepwell.runs.control import send_command
from stepwell.view.run_files import ViewedRun

KEYS = {"p": "pause", "r": "resume", "c": "checkpoint", "e": "evaluate", "s": "stop"}
_METRICS = {
    "success": "success",
    "format_share": "replies in form",
    "reward": "reward",
    "entropy": "entropy",
    "kl": "KL",
    "clip_share": "clipped",
    "explained_variance": "explained variance",
    "staleness/mean": "staleness",
    "tokens_per_s": "tokens/s",
}
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def draw_sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """The last values as a line of bars: means of equal parts, gaps where nothing is finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    parts = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    means = [_find_mean(part) for part in parts if part]
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(" " if m is None else _BARS[min(7, int(8 * (m - low) / span))] for m in means)


def build_screen(run: ViewedRun, said: str = "", *, has_keys: bool = True) -> RenderableType:
    """The whole dashboard of a run, with what its keys do where there are any."""
    entries = run.entries
    updates = [entry for entry in entries if entry.kind == "update"]
    evals = [entry for entry in entries if entry.kind == "eval"]
    learning = [entry for entry in entries if entry.kind in ("warm_start", "update")]
    last = entries[-1] if entries else None
    state = (run.state, _choose_style(run.state))
    head = Text.assemble((_clean(run.name), "bold"), f"  {_clean(run.recipe)} on {_clean(run.env)}  ", state)
    progress = Table.grid(padding=(0, 2))
    done, planned = (updates[-1].update if updates else 0), run.num_updates or 0
    progress.add_row(
        f"update {done}{f'/{planned}' if planned else ''}",
        ProgressBar(total=max(planned, 1), completed=done, width=_WIDTH),
        f"{format_duration(last.time_s if last else 0.0)}  {last.env_steps if last else 0:,} env steps",
    )
    table = Table.grid(padding=(0, 2))
    held_out = [entry.values["success"] for entry in evals if "success" in entry.values]
    if held_out:
        table.add_row("held-out", _format(held_out[-1]), Text(draw_sparkline(held_out), style="green"))
    for metric, name in _METRICS.items():
        values = [entry.values[metric] for entry in learning if metric in entry.values]
        if values:
            table.add_row(name, _format(values[-1]), Text(draw_sparkline(values), style="blue"))
    notes = [entry for entry in entries if entry.kind == "event"][-4:]
    events = Group(*(Text(f"{format_duration(e.time_s)}  {_clean(e.text)}", style="dim") for e in notes))
    keys = "p pause  r resume  c checkpoint  e evaluate  s stop  q leave" if run.status else "q leave"
    foot = [Text(said or keys, style="bold" if said else "dim")] if has_keys else []
    return Group(head, progress, Text(), table, Text(), events, *foot)


def print_once(folder: Path) -> None:
    """Print the dashboard once."""
    Console(highlight=False).print(build_screen(ViewedRun(folder.name, folder), has_keys=False))


def watch_run(folder: Path) -> None:
    """Draw the dashboard until `q` or Ctrl-C."""
    run, said, until = ViewedRun(folder.name, folder), "", 0.0
    with Live(build_screen(run), screen=True, auto_refresh=False) as live, _read_keys() as read_key:
        while (key := read_key(0.5)) != "q":
            if key in KEYS:
                said, until = _send(run, KEYS[key]), time.monotonic() + 4.0
            live.update(build_screen(run, said if time.monotonic() < until else ""), refresh=True)


def _send(run: ViewedRun, command: str) -> str:
    if run.status is None:
        return f"{command}: the run is {run.state}, and only one that trains obeys"
    try:
        send_command(run.folder, command)
        run.forget_status()
        return f"{command}: the run obeys after the present update"
    except StepwellError as error:
        return str(error)


@contextmanager
def _read_keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key for some seconds; without a terminal it only waits."""
    if not sys.stdin.isatty():
        yield _wait_only
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield lambda seconds: sys.stdin.read(1) if select.select([sys.stdin], [], [], seconds)[0] else ""
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _wait_only(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _find_mean(part: Sequence[float]) -> float | None:
    finite = [value for value in part if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _choose_style(state: str) -> str:
    return {"running": "green", "paused": "yellow", "failed": "red"}.get(state, "cyan")


def _format(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _clean(text: str) -> str:
    """One line without control characters, which a terminal would obey."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= 160 else f"{line[:159]}…"
