"""The progress of a run: what is known so far, and the time left, independent of where it is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import FILE_NAME, read_entries

CURVES = {"success": "success", "format_share": "in form"}
GROUPS = ("simulators", "generators", "trainers")


@dataclass(slots=True)
class Progress:
    """The progress of a run: the last metrics, the best evaluation, the time left."""

    info: RunInfo
    phase: str = "starting"
    time_s: float = 0.0
    update: int = 0
    env_steps: int = 0
    values: dict[str, float] = field(default_factory=dict)
    evals: list[LogEntry] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)  # while it learns: by warm start and update
    now: dict[str, float] = field(default_factory=dict)  # current values of the workers
    left_s: float | None = None  # at the last entry; None: not known yet
    is_paced: bool = False  # updates were timed; before that, the time left is put together from other parts

    def add_entry(self, entry: LogEntry) -> None:
        """Update the progress with one entry."""
        self.time_s, self.left_s = entry.time_s, entry.left_s
        if entry.kind in ("update", "warm_start"):
            for name in CURVES.keys() & entry.values.keys():
                self.shares.setdefault(name, []).append(entry.values[name])
        if entry.kind == "update":
            self.update, self.env_steps, self.values = entry.update, entry.env_steps, entry.values
            self.now = {name: value for name, value in entry.values.items() if name.split("/")[0] in GROUPS}
            self.phase, self.is_paced = "training", True
        elif entry.kind == "eval":
            self.evals.append(entry)
            self.phase = "training"
        elif entry.kind == "warm_start":
            self.values, self.phase = entry.values, _warm_start_title(entry.values)

    @property
    def best(self) -> LogEntry | None:
        """The evaluation with the highest success, the first one among equals."""
        scored = [entry for entry in self.evals if math.isfinite(entry.values.get("success", math.nan))]
        return max(scored, key=lambda entry: entry.values["success"], default=None)

    @property
    def title(self) -> str:
        """The phase, with the number of the update."""
        counted = f"update {self.update}/{self.info.num_updates}"
        if self.phase == "training":
            return counted
        return f"{self.phase} ({counted})" if self.update else self.phase

    def describe_left(self, since_s: float = 0.0) -> str:
        """The time left of the whole run, `since_s` after the last entry; empty where it is not known."""
        if self.left_s is None:
            return ""
        about = "" if self.is_paced else "about "
        return f"{about}{format_duration(max(self.left_s - since_s, 0.0))}"


def format_duration(seconds: float) -> str:
    """Seconds as 0:42, 12:05 or 3:07:00."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


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
