"""`metrics.jsonl` gives back what was recorded, after kills, resumes and full disks."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.core.errors import ConfigError, EncodingError, InfraError, InputError
from stepwell.monitors import JsonlMonitor, LogEntry, Monitors, RunInfo, read_entries, rewind
from stepwell.monitors.base import RESERVED

names = st.text(min_size=1, max_size=12).filter(lambda name: name not in RESERVED)
numbers = st.integers(-(2**70), 2**70) | st.floats()
entries = st.builds(
    LogEntry,
    st.sampled_from(["warm_start", "update", "eval", "event"]),
    update=st.integers(0, 20),
    time_s=st.integers(0, 10**6).map(lambda thousandths: thousandths / 1000),
    env_steps=st.integers(0, 10**9),
    values=st.dictionaries(names, numbers, max_size=4),
    text=st.text(max_size=20),
)
shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def info(folder: Path, resumed_from: int | None = None) -> RunInfo:
    return RunInfo(folder, "r", "frozenlake", "steppo", 0, 10, resumed_from=resumed_from)


def write(folder: Path, recorded: list[LogEntry], resumed_from: int | None = None) -> Path:
    monitor = JsonlMonitor()
    monitor.start(info(folder, resumed_from))
    for entry in recorded:
        monitor.record(entry)
    monitor.close()
    return folder / "metrics.jsonl"


def update(number: int, **values: float) -> LogEntry:
    return LogEntry("update", number, float(number), 100 * number, values)


def same(one: LogEntry, other: LogEntry) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(one) == repr(other)


@shared_folder
@given(st.lists(entries, max_size=6))
def test_entries_come_back_as_recorded(tmp_path: Path, recorded: list[LogEntry]) -> None:
    path = write(tmp_path, recorded, resumed_from=-1)
    back = read_entries(path)
    assert len(back) == len(recorded) and all(map(same, back, recorded))


def test_values_that_json_does_not_know_are_null_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, [update(1, kl=math.nan, reward=0.5, grad_norm=math.inf)])
    fields = json.loads(path.read_text())
    assert (fields["kl"], fields["reward"], fields["grad_norm"]) == (None, 0.5, None)
    assert fields["nonfinite"] == {"kl": "nan", "grad_norm": "inf"}


@shared_folder
@given(st.lists(entries, max_size=6), st.data())
def test_a_file_cut_anywhere_loses_only_its_last_line(
    tmp_path: Path, recorded: list[LogEntry], data: st.DataObject
) -> None:
    path = write(tmp_path, recorded, resumed_from=-1)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    num_whole = whole[:cut].count(b"\n")
    assert len(read_entries(path)) in (num_whole, num_whole + 1)  # + 1: only the line break is missing
    assert all(map(same, read_entries(path), recorded))
    before = read_entries(path)
    write(tmp_path, [update(3)], resumed_from=20)
    after = read_entries(path)
    assert len(after) == len(before) + 1 and all(map(same, after, [*before, update(3)]))


def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, [update(1), update(2), update(3)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:9], lines[2]]) + "\n")
    with pytest.raises(EncodingError, match="line 2"):
        read_entries(path)
    with pytest.raises(EncodingError, match="line 2"):
        rewind(path, 1)


def test_a_resumed_run_leaves_the_lines_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    warm = LogEntry("warm_start", 40, 2.0, 0, {"loss": 1.5})
    run = [warm, LogEntry("eval", 0, 3.0, 0, {"success": 0.2}), *(update(k) for k in range(1, 9))]
    straight = write(tmp_path / "straight", run).read_bytes()
    write(tmp_path / "stopped", run[:8])
    with (tmp_path / "stopped/metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "upd')
    assert write(tmp_path / "stopped", run[6:], resumed_from=4).read_bytes() == straight


def test_resuming_before_the_warm_start_keeps_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, [LogEntry("warm_start", 1, 2.0, 0), update(1)])
    rewind(path, 0)
    assert [entry.kind for entry in read_entries(path)] == ["warm_start"]
    rewind(path, -1)
    assert read_entries(path) == []
    rewind(tmp_path / "absent.jsonl", 3)


def test_a_fresh_run_does_not_write_into_another_ones_record(tmp_path: Path) -> None:
    write(tmp_path, [update(1)])
    with pytest.raises(ConfigError, match="--resume"):
        Monitors([JsonlMonitor()]).start(info(tmp_path))


def test_notes_become_events_at_the_place_of_the_last_entry(tmp_path: Path) -> None:
    monitor = JsonlMonitor()
    monitor.start(info(tmp_path))
    monitor.record(update(7))
    monitor.note("stopped early")
    assert read_entries(tmp_path / "metrics.jsonl")[-1] == LogEntry("event", 7, 7.0, 700, {}, "stopped early")
    monitor.close()


def test_a_metric_may_not_take_a_name_of_the_entry() -> None:
    with pytest.raises(InputError, match="update"):
        update(1, **{"update": 3.0})
    with pytest.raises(InputError, match=r"entry\.kind"):
        LogEntry("rollout", 1, 0.0, 0)  # type: ignore[arg-type]


def test_a_full_disk_is_told_with_the_file_and_leaves_whole_lines(tmp_path: Path) -> None:
    code = (
        "import pathlib, resource, signal, sys\n"
        "from stepwell.monitors import JsonlMonitor, LogEntry, RunInfo\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "monitor = JsonlMonitor()\n"
        "monitor.start(RunInfo(pathlib.Path(sys.argv[1]), 'r', 'e', 'steppo', 0, 1))\n"
        "for update in range(100): monitor.record(LogEntry('update', update, 0.5, 10, {'reward': 2.0}))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True
    )
    path = tmp_path / "metrics.jsonl"
    assert f"InfraError: cannot write {path}" in ended.stderr and "--resume" in ended.stderr
    assert path.read_bytes().endswith(b"\n")
    updates = [entry.update for entry in read_entries(path)]
    assert updates == list(range(len(updates))) and len(updates) > 5


def test_a_device_without_room_is_called_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    monitor = JsonlMonitor()
    monitor.start(info(tmp_path))
    with pytest.raises(InfraError, match=r"metrics\.jsonl .*the disk is full: free some space"):
        monitor.record(update(1))
    monitor.close()


def test_a_killed_run_loses_nothing_it_recorded(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\n"
        "from stepwell.monitors import JsonlMonitor, LogEntry, RunInfo\n"
        "monitor = JsonlMonitor()\n"
        "monitor.start(RunInfo(pathlib.Path(sys.argv[1]), 'r', 'e', 'steppo', 0, 1))\n"
        "monitor.record(LogEntry('update', 1, 0.5, 10, {'reward': 2.0}))\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_entries(tmp_path / "metrics.jsonl") == [LogEntry("update", 1, 0.5, 10, {"reward": 2.0})]
