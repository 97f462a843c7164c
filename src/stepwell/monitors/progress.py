"""The progress of a run: what is known so far, and the time left, independent of where it is shown.

The time left is that of the remaining updates, at the pace of the last ones (a mean without the longest and
the shortest, since other work on the machine stretches single updates), and of the remaining evaluations,
each as long as the last one. Before the first update it is the expected time (`RunInfo.expected_s`), if there
is one; over the first quarter of the updates it passes from that to the pace, since early episodes are longer
than later ones. A warm start tells the most that is left of it: it ends where its goal is reached.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import FILE_NAME, read_entries

RECENT = 15  # updates whose pace predicts the time left
EARLY = 0.25  # share of the updates after which the pace alone predicts it
CURVES = {"success": "success", "format_share": "in form"}
GROUPS = ("simulators", "generators", "trainers")
_UPDATE_TIMES = ("time/rollout_s", "time/update_s", "time/publish_s", "time/checkpoint_s")


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


def make_progress(info: RunInfo) -> Progress:
    """The progress of a run that begins, or of one that continues, with its earlier evaluations."""
    if info.resumed_from is None:
        return Progress(info)
    entries = read_entries(info.folder / FILE_NAME)
    evals = [entry for entry in entries if entry.kind == "eval" and entry.update <= info.resumed_from]
    return Progress(info, update=max(info.resumed_from, 0), evals=evals)
