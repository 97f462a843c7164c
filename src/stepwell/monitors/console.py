"""The console: a live view of a run in a terminal, plain lines elsewhere.

In a terminal, a block of a few lines is redrawn in place twice a second, by a thread that only
formats numbers: training never waits for it. Without a terminal (a file, a pipe, CI), a line is
written every `every` updates, when the last line is older than `every_s` seconds, and for every
evaluation. Lines are ASCII without control characters, so that the output can be searched and kept.
"""

from __future__ import annotations

import math
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepwell.monitors.base import LogEntry, Monitor, RunInfo
from stepwell.monitors.progress import CURVES, GROUPS, Progress, format_duration, make_progress

SPARKS = "▁▂▃▄▅▆▇█"
FAILURES = "agent_failures/"
_LINE_NAMES = {"tokens_per_s": "tokens/s", "clip_share": "clipped"}
SHARES = frozenset({"success", "low", "high", "clip_share", "format_share", "explained_variance"})


class ConsoleMonitor(Monitor):
    """Shows a run on `console`, live if it is a terminal."""

    def __init__(self, console: Console | None = None, *, every: int = 10, every_s: float = 15.0) -> None:
        self.console = console or Console()
        self.is_live = self.console.is_terminal and not self.console.is_dumb_terminal
        self._every, self._every_s = every, every_s
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._line_at_s = -math.inf
        self._entry_at = time.monotonic()

    def start(self, info: RunInfo) -> None:
        self._progress = make_progress(info)
        again = f", resumed after update {info.resumed_from}" if info.resumed_from is not None else ""
        self._print_text(
            f"{info.name}: {info.recipe} on {info.env}, seed {info.seed}{again}, in {info.folder}"
        )
        if self.is_live:
            self._live = Live(get_renderable=self._make_view, console=self.console, refresh_per_second=2)
            self._live.start()

    def phase(self, text: str) -> None:
        if self._progress is not None:
            self._progress.phase = text

    def watch(self, values: dict[str, float]) -> None:
        if self._progress is not None:
            self._progress.now = values

    def record(self, entry: LogEntry) -> None:
        assert self._progress is not None, "start comes before record"
        if entry.kind == "event":
            self.note(entry.text)
            return
        self._progress.add_entry(entry)
        self._entry_at = time.monotonic()
        if not self.is_live and self._is_due(entry):
            self._line_at_s = entry.time_s
            self._print_text(format_entry(entry, self._progress))
            if entry.kind == "update":
                for group, figures in (*describe_workers(self._progress.now), *describe_sync(entry.values)):
                    self._print_text(f"{'':>8}  {group}  {figures}")

    def note(self, text: str) -> None:
        self._print_text(text)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None

    def _is_due(self, entry: LogEntry) -> bool:
        is_late = entry.time_s - self._line_at_s >= self._every_s
        if entry.kind == "update":
            assert self._progress is not None
            is_last = entry.update == self._progress.info.num_updates
            is_shown = is_last or entry.update == 1 or entry.update % self._every == 0
            return is_late or is_shown or bool(describe_failures(entry.values))
        return is_late or entry.kind == "eval"

    def _print_text(self, text: str) -> None:
        """Print text above the live block. Control characters from agents and environments are removed."""
        clean = "".join(char if char == "\n" or char.isprintable() else " " for char in text)
        clean = clean.encode(self.console.encoding, "replace").decode(self.console.encoding)
        self.console.print(clean, markup=False, highlight=False, soft_wrap=True, emoji=False)

    def _make_view(self) -> RenderableType:
        if self._progress is None:
            return Text("")
        return make_live_view(self._progress, self.console, since_s=time.monotonic() - self._entry_at)


def format_entry(entry: LogEntry, progress: Progress) -> str:
    """One entry as one line of ASCII."""
    values = entry.values
    words = [f"{format_duration(entry.time_s):>8}"]
    if entry.kind == "eval":
        words += [f"update {entry.update}/{progress.info.num_updates}", f"held-out {_format_success(entry)}"]
        best = progress.best
        words += [f"best {best.values['success']:.2f} at {best.update}"] if best else []
        words += [f"agent failed {failed}"] if (failed := describe_failures(values)) else []
        words += [f"left {left}"] if (left := progress.describe_left()) else []
        return "  ".join(words)
    words.append(progress.title)
    for name in ("success", "reward", "loss", "entropy", "kl", "clip_share", "tokens_per_s"):
        if name in values:
            words.append(f"{_LINE_NAMES.get(name, name)} {_format_value(name, values[name])}")
    if "outcome/agreement" in values:
        words.append(f"judge right {values['outcome/agreement']:.2f}")
    words += [f"agent failed {failed}"] if (failed := describe_failures(values)) else []
    words += [f"left {left}"] if (left := progress.describe_left()) else []
    return "  ".join(words)


def describe_failures(values: dict[str, float]) -> str:
    """Failures of a user's own agent, by kind: `3 raised, 1 timed_out`."""
    counts = {
        name.removeprefix(FAILURES): value for name, value in values.items() if name.startswith(FAILURES)
    }
    return ", ".join(f"{value:.0f} {kind}" for kind, value in counts.items() if value)


def describe_workers(now: dict[str, float]) -> list[tuple[str, str]]:
    """A line per kind of worker: how busy it is, what waits for it, what it holds."""
    lines = []
    for group in GROUPS:
        if f"{group}/busy" not in now:
            continue
        words = [f"{100 * now[f'{group}/busy']:.0f} % busy"]
        for name, text in _GROUP_WORDS.items():
            value = now.get(f"{group}/{name}", 0.0)
            if f"{group}/{name}" in now and (value or name not in _ONLY_IF_ANY):
                words.append(text.format(value))
        lines.append((group, ", ".join(words)))
    return lines


def describe_sync(values: dict[str, float]) -> list[tuple[str, str]]:
    """A line about the weights that went to generators: who waited for them, and what was sent."""
    if "sync/sent_mb" not in values:
        return []
    return [
        (
            "weights",
            f"trainer waited {values['sync/trainer_wait_s']:.2g} s, generators paused "
            f"{values['sync/pause_max_s']:.2g} s, {values['sync/sent_mb']:,.1f} MB sent",
        )
    ]


_GROUP_WORDS = {
    "episodes": "{:.0f} episodes",
    "queue": "{:.0f} waiting",
    "batch": "batches of {:.1f}",
    "memory_mb": "{:,.0f} MB",
    "restarts": "{:.0f} restarts",
}
_ONLY_IF_ANY = ("restarts", "memory_mb")


def make_live_view(progress: Progress, console: Console, since_s: float = 0.0) -> RenderableType:
    """The block that is redrawn in place, `since_s` after the last entry: a progress bar, then rows
    of metrics."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, figures in _make_rows(progress, is_unicode=console.encoding.lower().startswith("utf")):
        if figures:
            table.add_row(name, Text("  ").join(figures))
    return Group(_make_head(progress, since_s), table)


def _make_head(progress: Progress, since_s: float) -> Table:
    head = Table.grid(padding=(0, 2))
    done, whole = progress.update, max(progress.info.num_updates, 1)
    if not done and "num_steps" in progress.values:  # the warm start has its own bar
        done, whole = int(progress.values["step"]), max(int(progress.values["num_steps"]), 1)
    clock = format_duration(progress.time_s + since_s)
    clock += f", {left} left" if (left := progress.describe_left(since_s)) else ""
    head.add_row(
        Text(progress.title, style="bold"),
        ProgressBar(total=whole, completed=min(done, whole), width=28),
        Text(clock, style="dim"),
    )
    return head


def _make_rows(progress: Progress, is_unicode: bool) -> list[tuple[str, list[Text]]]:
    values = progress.values
    success = _format_metrics(values, {"success": "train", "outcome/agreement": "judge right"})
    if progress.evals:
        success.append(_format_metric("held-out", _format_success(progress.evals[-1]), "bold green"))
    if (best := progress.best) is not None:
        success.append(_format_metric("best", f"{best.values['success']:.2f} at {best.update}"))
    if is_unicode and len(progress.evals) > 1:
        success.append(
            Text(draw_sparkline([entry.values.get("success", math.nan) for entry in progress.evals]))
        )
    curves = [
        _format_metric(label, draw_sparkline(progress.shares[name]), "bold blue")
        for name, label in CURVES.items()
        if is_unicode and len(progress.shares.get(name, ())) > 1
    ]
    parts = {name: name.removeprefix("reward/") for name in values if name.startswith("reward/")}
    policy = {"loss": "loss", "entropy": "entropy", "kl": "KL", "clip_share": "clipped"}
    speed = {"tokens_per_s": "tokens/s", "time/rollout_s": "rollout s", "time/update_s": "update s"}
    return [
        ("success", success),
        ("learning", curves),
        ("reward", _format_metrics(values, {"reward": "all", **parts})),
        (
            "policy",
            _format_metrics(values, {**policy, "explained_variance": "explained", "grad_norm": "gradient"}),
        ),
        ("speed", _format_metrics(values, speed)),
        ("agent failed", [Text(failed, style="bold red")] if (failed := describe_failures(values)) else []),
        *((group, [Text(figures, style="bold")]) for group, figures in describe_workers(progress.now)),
        *((name, [Text(figures, style="bold")]) for name, figures in describe_sync(progress.values)),
    ]


def _format_metrics(values: dict[str, float], labels: dict[str, str]) -> list[Text]:
    return [
        _format_metric(label, _format_value(name, values[name]))
        for name, label in labels.items()
        if name in values
    ]


def _format_metric(label: str, value: str, style: str = "bold") -> Text:
    return Text.assemble((label, "dim"), " ", (value, style))


def _format_success(entry: LogEntry) -> str:
    success, low, high = (entry.values.get(name) for name in ("success", "low", "high"))
    shown = "unknown" if success is None else f"{success:.2f}"
    return shown if low is None or high is None else f"{shown} [{low:.2f}, {high:.2f}]"


def _format_value(name: str, value: float) -> str:
    return f"{value:.2f}" if name in SHARES else format_number(value)


def draw_sparkline(values: list[float], width: int = 24) -> str:
    """The last `width` shares in [0, 1] as blocks; NaN leaves a gap."""
    last = len(SPARKS) - 1
    return "".join(
        SPARKS[round(min(max(value, 0.0), 1.0) * last)] if math.isfinite(value) else " "
        for value in values[-width:]
    )


def format_number(value: float) -> str:
    """A number in a few characters: 0.31, 12.4, 41,200, 1.2e-05."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1 or size == 0:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.1e}"
