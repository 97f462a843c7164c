"""The interface between a run and its monitors.

The loop records a `LogEntry` whenever it has metrics (an update, an evaluation, a part of the
warm start) and a note whenever it has a message. `Monitors` passes each to every monitor.

Invariants
* Monitoring never changes a run. A monitor that fails (a lost connection, a missing folder) is
  reported once, through the others, and dropped. Only a `required` monitor, which writes the
  record that the run itself needs (`metrics.jsonl`), may stop the run, with an error that says
  what to do.
* A mistake in the configuration is reported at the start: a `StepwellError` raised by `start` is
  passed on, whatever the monitor.
* Values are plain numbers with flat names; a name such as `reward/format` is part of `reward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from stepwell.core.errors import InputError, StepwellError
from stepwell.core.text import replace_half_surrogates

EntryKind = Literal["warm_start", "update", "eval", "event"]
RESERVED = frozenset({"kind", "update", "time_s", "env_steps", "left_s", "text", "nonfinite"})


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The identity of a run. `resumed_from` is the update of the checkpoint that it continues from.

    Everything recorded after that update is recorded again and must not count twice. -1 means
    that not even the warm start was kept; None is a new run.
    """

    folder: Path
    name: str
    env: str
    recipe: str
    seed: int
    num_updates: int
    config: dict[str, Any] = field(default_factory=dict)
    resumed_from: int | None = None
    id: str = ""  # does not change when the folder is renamed


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Metrics at one moment of a run: after `update` updates, `time_s` seconds, `env_steps` steps.

    Example: `LogEntry("eval", update=20, time_s=31.5, env_steps=7680, values={"success": 0.61,
    "low": 0.55, "high": 0.67})`. Only events have `text`. `left_s` estimates the seconds to the end of the
    run, where they are known.
    """

    kind: EntryKind
    update: int
    time_s: float
    env_steps: int
    values: dict[str, float] = field(default_factory=dict)
    text: str = ""
    left_s: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(EntryKind):
            raise InputError(f"entry.kind must be one of {', '.join(get_args(EntryKind))}, got {self.kind!r}")
        if clash := RESERVED & self.values.keys():
            raise InputError(f"entry.values: {sorted(clash)} are reserved names; rename the metric")


class Monitor:
    """Base class of monitors. Methods that a monitor does not override do nothing."""

    required: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name shown when this monitor fails."""
        return type(self).__name__.removesuffix("Monitor").lower()

    def start(self, info: RunInfo) -> None:
        """The run begins, or continues (`info.resumed_from`)."""

    def phase(self, text: str) -> None:
        """The run enters a phase such as `evaluating`; the next entry ends it."""

    def watch(self, values: dict[str, float]) -> None:
        """Current values to show but not record; may be called from any thread."""

    def record(self, entry: LogEntry) -> None:
        """Record new metrics."""

    def note(self, text: str) -> None:
        """Show a message."""

    def close(self) -> None:
        """The run is over or was interrupted; also called if `start` was not."""


class Monitors(Monitor):
    """Passes everything to each of its monitors, and survives the failure of an optional one."""

    required = True

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._alive = list(monitors)

    def __len__(self) -> int:
        return len(self._alive)

    def start(self, info: RunInfo) -> None:
        self._call_each(lambda monitor: monitor.start(info), is_start=True)

    def phase(self, text: str) -> None:
        self._call_each(lambda monitor: monitor.phase(text))

    def watch(self, values: dict[str, float]) -> None:
        for monitor in list(self._alive):  # not `_each`: a failure must not be handled in another thread
            monitor.watch(values)

    def record(self, entry: LogEntry) -> None:
        self._call_each(lambda monitor: monitor.record(entry))

    def note(self, text: str) -> None:
        """Show a message. It may quote an environment, so it is made safe to store."""
        self._call_each(lambda monitor: monitor.note(replace_half_surrogates(text)))

    def close(self) -> None:
        """Close every monitor, even if one of them fails. The required ones come last, so that they
        still record the messages of the others."""
        for monitor in sorted(self._alive, key=lambda monitor: monitor.required):
            self._call_each(lambda monitor: monitor.close(), among=[monitor])
        self._alive = []

    def _call_each(
        self, call: Callable[[Monitor], None], *, among: list[Monitor] | None = None, is_start: bool = False
    ) -> None:
        """Call each monitor; then raise the first fatal failure and report the others."""
        fatal: Exception | None = None
        reports = []
        for monitor in among or list(self._alive):
            try:
                call(monitor)
            except Exception as error:
                if monitor.required or (is_start and isinstance(error, StepwellError)):
                    fatal = fatal or error
                else:
                    self._alive.remove(monitor)
                    reason = str(error) or type(error).__name__
                    reports.append(f"the {monitor.name} monitor failed and is now off: {reason}")
        if fatal is not None:
            raise fatal
        for report in reports:
            self.note(report)
