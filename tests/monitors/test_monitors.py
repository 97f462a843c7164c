"""Entries reach every monitor; a failing optional one is reported once and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.core.errors import ConfigError, InfraError
from stepwell.monitors import JsonlMonitor, LogEntry, Monitor, Monitors, RunInfo, read_entries


class Heard(Monitor):
    """Keeps what it is told, in words."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, info: RunInfo) -> None:
        self.told.append(f"start {info.name}")

    def phase(self, text: str) -> None:
        self.told.append(f"phase {text}")

    def record(self, entry: LogEntry) -> None:
        self.told.append(f"{entry.kind} {entry.update}")

    def note(self, text: str) -> None:
        self.told.append(text)

    def close(self) -> None:
        self.told.append("close")


class RemoteMonitor(Monitor):
    """Loses its connection at the moment it is told to."""

    def __init__(self, fails_at: str, error: Exception) -> None:
        self.fails_at, self.error = fails_at, error

    def start(self, info: RunInfo) -> None:
        self.fail("start")

    def record(self, entry: LogEntry) -> None:
        self.fail("record")

    def close(self) -> None:
        self.fail("close")

    def fail(self, moment: str) -> None:
        if moment == self.fails_at:
            raise self.error


class VitalMonitor(RemoteMonitor):
    required = True


def info(folder: Path) -> RunInfo:
    return RunInfo(folder, "r", "frozenlake", "steppo", 0, 10)


def watch(monitors: Monitors, folder: Path) -> None:
    monitors.start(info(folder))
    for update in (1, 2):
        monitors.record(LogEntry("update", update, 1.0, 10))
    monitors.phase("evaluating")
    monitors.close()


def test_everything_reaches_every_monitor_in_order(tmp_path: Path) -> None:
    one, other = Heard(), Heard()
    watch(Monitors([one, other]), tmp_path)
    assert one.told == ["start r", "update 1", "update 2", "phase evaluating", "close"] == other.told


@pytest.mark.parametrize(("moment", "place"), [("start", 1), ("record", 2), ("close", 4)])
def test_a_failing_optional_monitor_is_reported_once_and_dropped(
    tmp_path: Path, moment: str, place: int
) -> None:
    report = "the remote monitor failed and is now off: connection lost"
    heard = Heard()
    watch(Monitors([RemoteMonitor(moment, OSError("connection lost")), heard, JsonlMonitor()]), tmp_path)
    others = ["start r", "update 1", "update 2", "phase evaluating", "close"]
    assert heard.told == [*others[:place], report, *others[place:]]
    assert [entry.text for entry in read_entries(tmp_path / "metrics.jsonl")].count(report) == 1


def test_a_failing_required_monitor_stops_the_run_after_the_others_were_told(tmp_path: Path) -> None:
    heard = Heard()
    with pytest.raises(InfraError, match="disk full"):
        watch(Monitors([VitalMonitor("record", InfraError("disk full")), heard]), tmp_path)
    assert heard.told == ["start r", "update 1"]


def test_a_mistake_in_the_configuration_is_told_at_the_start_whatever_the_monitor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install"):
        watch(Monitors([RemoteMonitor("start", ConfigError("pip install it"))]), tmp_path)


def test_closing_closes_all_even_when_a_required_one_fails(tmp_path: Path) -> None:
    heard = Heard()
    with pytest.raises(InfraError):
        watch(Monitors([VitalMonitor("close", InfraError("disk full")), heard]), tmp_path)
    assert heard.told[-1] == "close"
