"""The control socket: a run that is paused, saved, evaluated and stopped from outside."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.small import notes, small_config

from stepwell.core.errors import InfraError, InputError
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import read_summary
from stepwell.runs.control import SOCKET_FILE, read_status, send_command
from stepwell.runs.loop.control_channel import ControlChannel
from stepwell.runs.run import train
from stepwell.training.checkpoint import list_checkpoints


def wait_until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def channel(tmp_path: Path) -> ControlChannel:
    return ControlChannel(tmp_path, lambda: {"update": 7}, lambda text: None)


def test_requests_reach_the_loop_and_get_its_state(channel: ControlChannel, tmp_path: Path) -> None:
    channel.open()
    try:
        assert read_status(tmp_path) == {"ok": True, "is_paused": False, "update": 7}
        assert send_command(tmp_path, "pause")["is_paused"]
        send_command(tmp_path, "checkpoint")
        assert channel.take_requests() == {"checkpoint"} and channel.take_requests() == set()
        assert not send_command(tmp_path, "stop")["is_paused"]  # stopping ends a pause
        assert stat.S_IMODE(os.stat(tmp_path / SOCKET_FILE).st_mode) == 0o600
    finally:
        channel.close()
    assert read_status(tmp_path) is None and not (tmp_path / SOCKET_FILE).exists()


def test_a_long_folder_name_has_a_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    channel = ControlChannel(folder, dict, lambda text: None)
    channel.open()
    try:
        assert read_status(folder) == {"ok": True, "is_paused": False}
    finally:
        channel.close()
    assert not os.path.lexists(folder / SOCKET_FILE)


def test_a_socket_that_a_killed_run_left_is_replaced(channel: ControlChannel, tmp_path: Path) -> None:
    (tmp_path / SOCKET_FILE).write_text("left behind")
    assert read_status(tmp_path) is None
    channel.open()
    try:
        assert read_status(tmp_path) is not None
    finally:
        channel.close()


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Commands: status, pause"):
        send_command(tmp_path, "explode")
    with pytest.raises(InfraError, match="no run listens"):
        send_command(tmp_path, "pause")


@pytest.mark.slow
def test_a_run_is_paused_saved_evaluated_and_stopped(tmp_path: Path) -> None:
    settings = ("train.num_updates=500", "eval.num_tasks=2", "checkpoint.every_minutes=0")
    config, folder = small_config(*settings, folder=tmp_path), tmp_path / "run"
    thread = threading.Thread(target=train, args=(config,))
    thread.start()
    wait_until(lambda: read_status(folder) is not None)
    send_command(folder, "pause")
    wait_until(lambda: any("paused" in text for text in notes(folder)))
    status = read_status(folder)
    assert status is not None and status["is_paused"] and status["memory_mb"] > 50
    send_command(folder, "evaluate")
    wait_until(lambda: list_checkpoints(folder / "checkpoints")[-1].name == f"update-{status['update']:06d}")
    evals = [entry.update for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "eval"]
    assert evals[-1] == status["update"]
    send_command(folder, "resume")
    send_command(folder, "stop")
    thread.join(120)
    summary = read_summary(folder)
    assert summary is not None and (summary.status, summary.interrupted_by) == ("interrupted", "control")
    assert "resumed" in notes(folder)
