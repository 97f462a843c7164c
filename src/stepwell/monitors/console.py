"""The console: a live view of a run in a terminal, plain lines elsewhere.

In a terminal, a block of a few lines is redrawn in place twice a second, by a thread that only
formats numbers: training never waits for it. Without a terminal (a file, a pipe, CI), a line is
written every `every` updates, when the last line is older than `every_s` seconds, and for every
evaluation. Lines are ASCII without control characters, so that the output can be searched and kept.

`Progress` holds what is known so far, independent of terminals. The time left is that of the remaining
updates, at the pace of the last ones (a mean without the longest and the shortest, since other work on the
machine stretches single updates), and of the remaining evaluations, each as long as the last one. A warm
start tells the most that is left of it: it ends where its goal is reached.
Before the first update it is the expected time (`RunInfo.expected_s`), if there is one; over the first
quarter of the updates it passes from that to the pace, since early episodes are longer than later ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepwell.monitors.base import LogEntry, Monitor, RunInfo

RECENT = 15  # updates whose pace predicts the time left
EARLY = 0.25  # share of the updates after which the pace alone predicts it
SPARKS = "▁▂▃▄▅▆▇█"
CURVES = {"success": "success", "format_share": "in form"}
GROUPS = ("simulators", "generators", "trainers")
_UPDATE_TIMES = ("time/rollout_s", "time/update_s", "time/publish_s", "time/checkpoint_s")
FAILURES = "agent_failures/"
_LINE_NAMES = {"tokens_per_s": "tokens/s", "clip_share": "clipped"}
SHARES = frozenset({"success", "low", "high", "clip_share", "format_share", "explained_variance"})


@dataclass(slots=True)
class Progress:
    """The progress of a run: the last metrics, the best evaluation, the pace."""

    info: RunInfo
    phase: str = "starting"
    time_s: float = 0.0
    update: int = 0
    env_steps: int = 0
    values: dict[str, float] = field(default_factory=dict)
    evals: list[LogEntry] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)  # while it learns: by warm start and update
    now: dict[str, float] = field(default_factory=dict)  # current values of the workers
    update_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # each of the last updates
    eval_s: float = 0.0  # the last evaluation
    warm_start_s: float = 0.0
    warm_start_at: tuple[float, float] | None = None  # time and step of its first entry
    last_s: float | None = None  # time of the last entry; None before the first one

    def add_entry(self, entry: LogEntry) -> None:
        """Update the progress with one entry."""
        self._measure_time(entry)
        self.time_s = self.last_s = entry.time_s
        if entry.kind in ("update", "warm_start"):
            for name in CURVES.keys() & entry.values.keys():
                self.shares.setdefault(name, []).append(entry.values[name])
        if entry.kind == "update":
            self.update, self.env_steps, self.values = entry.update, entry.env_steps, entry.values
            self.now = {name: value for name, value in entry.values.items() if name.split("/")[0] in GROUPS}
            self.phase = "training"
        elif entry.kind == "eval":
            self.evals.append(entry)
            self.phase = "training"
        elif entry.kind == "warm_start":
            self.values, self.phase = entry.values, _warm_start_title(entry.values)

    def _measure_time(self, entry: LogEntry) -> None:
        """Measure the time of this entry: everything since the previous entry."""
        took_s = None if self.last_s is None else entry.time_s - self.last_s
        if entry.kind == "update":
            num_updates = max(entry.update - self.update, 1)
            if took_s is None:  # the first entry of a resumed run: only its own times are known
                took_s, num_updates = sum(entry.values.get(name, 0.0) for name in _UPDATE_TIMES), 1
            if took_s > 0:
                self.update_s.append(took_s / num_updates)
        elif entry.kind == "eval" and took_s is not None:
            self.eval_s = took_s
        elif entry.kind == "warm_start":
            self.warm_start_s = entry.time_s
            if self.warm_start_at is None:
                self.warm_start_at = entry.time_s, entry.values.get("step", 0.0)

    @property
    def best(self) -> LogEntry | None:
        """The evaluation with the highest success, the first one among equals."""
        scored = [entry for entry in self.evals if math.isfinite(entry.values.get("success", math.nan))]
        return max(scored, key=lambda entry: entry.values["success"], default=None)

    @property
    def left_s(self) -> float | None:
        """Seconds to the end, or to the run's own time limit if that is sooner; None: not known yet."""
        if not self.update_s:
            expected_s = self.info.expected_s
            return None if expected_s is None else max(expected_s - self.time_s, 0.0)
        pace_s = _mean_without_extremes(self.update_s)
        evals_s = self._count_evals_left() * self.eval_s
        left_s = pace_s * (self._find_last_update() - self.update) + evals_s
        if self.info.expected_s is not None:
            seen = min(self.update / (EARLY * self.info.num_updates), 1.0)
            left_s = seen * left_s + (1 - seen) * max(self.info.expected_s - self.time_s, 0.0)
        limit_s = (self.info.config.get("train") or {}).get("max_seconds")
        if limit_s:
            left_s = min(left_s, limit_s + self.warm_start_s - self.time_s + min(evals_s, self.eval_s))
        return max(0.0, left_s)

    @property
    def warm_start_left_s(self) -> float | None:
        """The most seconds to the end of the warm start, at its pace; None: not in it, or not known yet."""
        step, whole = self.values.get("step", 0.0), self.values.get("num_steps")
        if whole is None or self.warm_start_at is None or step <= self.warm_start_at[1]:
            return None
        if not self.phase.startswith("warm start"):
            return None
        begun_s, first = self.warm_start_at
        return (self.warm_start_s - begun_s) / (step - first) * max(whole - step, 0.0)

    def _find_last_update(self) -> int:
        """The number of updates of the run; fewer where its limit of environment steps comes sooner."""
        limit: int | None = (self.info.config.get("train") or {}).get("max_env_steps")
        if not limit or not self.env_steps or not self.update:
            return self.info.num_updates
        more = math.ceil(max(limit - self.env_steps, 0) * self.update / self.env_steps)
        return min(self.info.num_updates, self.update + more)

    def _count_evals_left(self) -> int:
        """The number of evaluations to come, with that of the current update and the one at the end."""
        settings = self.info.config.get("eval") or {}
        whole = self._find_last_update()
        if not settings.get("num_tasks"):
            return 0
        every = settings.get("every") or whole
        judged = self.evals[-1].update if self.evals else self.update - 1
        return max(0, whole // every - judged // every + (whole % every > 0 and judged < whole))

    @property
    def title(self) -> str:
        """The phase, with the number of the update."""
        counted = f"update {self.update}/{self.info.num_updates}"
        if self.phase == "training":
            return counted
        return f"{self.phase} ({counted})" if self.update else self.phase


def _mean_without_extremes(times: Sequence[float]) -> float:
    """The mean of times without a tenth of them at either end. Of a few it is the middle one, or the shorter
    of the two in the middle: a first update also starts simulators and compiles."""
    if len(times) < 5:
        return statistics.median_low(times)
    cut = math.ceil(len(times) / 10)
    kept = sorted(times)[cut : len(times) - cut]
    return sum(kept) / len(kept)


def _warm_start_title(values: dict[str, float]) -> str:
    if "num_steps" not in values:
        return "warm start"
    return f"warm start {values['step']:.0f}/{values['num_steps']:.0f}"


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
        self._progress = Progress(info, update=max(info.resumed_from or 0, 0))
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
        return "  ".join(words)
    words.append(progress.title)
    for name in ("success", "reward", "loss", "entropy", "kl", "clip_share", "tokens_per_s"):
        if name in values:
            words.append(f"{_LINE_NAMES.get(name, name)} {_format_value(name, values[name])}")
    if "outcome/agreement" in values:
        words.append(f"judge right {values['outcome/agreement']:.2f}")
    words += [f"agent failed {failed}"] if (failed := describe_failures(values)) else []
    if (left := progress.left_s) is not None:
        words.append(f"left {format_duration(left)}")
    elif (left := progress.warm_start_left_s) is not None:
        words.append(f"at most {format_duration(left)} left of it")
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
    if (left := progress.left_s) is not None:
        clock += f", {format_duration(max(left - since_s, 0.0))} left"
    elif (left := progress.warm_start_left_s) is not None:
        clock += f", at most {format_duration(max(left - since_s, 0.0))} left of it"
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


def format_duration(seconds: float) -> str:
    """Seconds as 0:42, 12:05 or 3:07:00."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
