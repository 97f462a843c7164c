"""One process trains in a run folder at a time; what a failed start leaves is no run."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.runs.broken_envs import BrokenLake
from tests.runs.small import small_config

from stepwell.config.loading import dump_config
from stepwell.core import ConfigError, EnvError
from stepwell.monitors.summary import read_summary
from stepwell.runs.run import make_run_folder, train
from stepwell.runs.run_lock import hold_run_folder


def hold_until_killed(folder: Path, ready: Connection) -> None:
    with hold_run_folder(folder):
        ready.send(os.getpid())
        ready.recv()


def test_a_second_process_is_refused_with_the_holders_pid_and_host_until_it_dies(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    kind = multiprocessing.get_context("fork")
    child = kind.Process(target=hold_until_killed, args=(tmp_path, there), daemon=True)
    child.start()
    pid = here.recv()
    short = small_config("train.num_updates=0", "eval.num_tasks=1", folder=tmp_path)
    (tmp_path / "config.toml").write_text(dump_config(short))
    with pytest.raises(ConfigError, match=rf"in use by process {pid} on host {socket.gethostname()} since"):
        train(resume=tmp_path)
    child.kill()
    child.join()
    with hold_run_folder(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_runs_without_a_name_that_start_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    config = small_config(folder=tmp_path, name="")
    folders = {make_run_folder(config) for _ in range(20)}
    assert len(folders) == 20
    assert all(folder.is_dir() for folder in folders)


def test_a_fresh_run_is_refused_while_another_begins_under_its_name(tmp_path: Path) -> None:
    config = small_config(folder=tmp_path)
    folder = make_run_folder(config)
    with hold_run_folder(folder), pytest.raises(ConfigError, match=rf"in use by process {os.getpid()}"):
        train(config)
    assert folder.exists()


def test_a_filesystem_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"has no file locks .* choose a `folder` on another disk"):
        hold_run_folder(tmp_path).__enter__()


def test_a_folder_left_by_a_start_that_was_killed_is_used_again(tmp_path: Path) -> None:
    left = tmp_path / "run"
    (left / "pool").mkdir(parents=True)
    for name in (".lock", ".config.toml.7.tmp", "config.toml", "pool/pool.db"):
        (left / name).write_text("not what a run would write")
    folder = train(small_config("train.num_updates=1", "eval.num_tasks=0", folder=tmp_path))
    assert folder == left and (folder / "checkpoints/update-000001").is_dir()
    assert not (folder / ".config.toml.7.tmp").exists()


def test_a_run_whose_first_evaluation_fails_can_be_started_again_under_its_name(tmp_path: Path) -> None:
    BrokenLake.num_raised = 0
    options = "{size=3, max_turns=2, place='act', rows=[0, 1, 2], times=1000}"
    broken = ("env.name=tests.runs.broken_envs:BrokenLake", f"env.options={options}")
    with pytest.raises(EnvError, match="the simulator is gone"):
        train(small_config(*broken, "train.max_env_retries=0", folder=tmp_path))
    assert read_summary(tmp_path / "run").status == "failed"  # type: ignore[union-attr]
    folder = train(small_config("train.num_updates=0", folder=tmp_path))
    assert read_summary(folder).status == "finished"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/update-000001/loop.json"])
def test_a_folder_with_anything_else_in_it_is_left_alone(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "run" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (tmp_path / "run/.lock").touch()
    with pytest.raises(ConfigError, match="exists already"):
        train(small_config(folder=tmp_path))
    assert mine.read_text() == "mine"


def test_settings_that_lie_in_a_folder_are_not_taken_for_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        train(small_config(folder=tmp_path))
