"""Checkpoints beside training: what was asked for is written, whole or not at all, and failures are told."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import resource
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.training.test_checkpoint import disturb, parts

from stepwell.core import InfraError
from stepwell.training import checkpoint, checkpoint_writer
from stepwell.training.checkpoint import (
    collect_state,
    find_damage,
    find_latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    sweep_leftovers,
    write_checkpoint,
)
from stepwell.training.checkpoint_writer import CheckpointWriter
from stepwell.training.host_copy import HostCopy

LIMIT_S = 60.0


@pytest.mark.parametrize("more", [{}, {"lora": {"r": 2}}])
def test_what_is_written_is_the_state_at_the_request(tmp_path: Path, more: dict[str, object]) -> None:
    policy, trainer = parts("own", **more)
    writer, may_write = CheckpointWriter(pytest.fail), threading.Event()
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    trainer.optimizer.step()
    whole = save_checkpoint(tmp_path / "whole", policy, trainer, {"update": 1})

    def write(state: checkpoint.CheckpointState) -> None:
        assert may_write.wait(LIMIT_S)
        write_checkpoint(tmp_path, state)

    writer.save(lambda: collect_state(policy, trainer, {"update": 1}), write)
    for parameter in policy.parameters():  # training goes on
        parameter.grad = torch.ones_like(parameter)
    trainer.optimizer.step()
    trainer.num_done += 1
    assert not (tmp_path / "update-000001").exists()
    may_write.set()
    writer.wait()
    written = tmp_path / "update-000001"
    marks = [json.loads((path / "complete.json").read_text()) for path in (whole.path, written)]
    states = [torch.load(path / "trainer.pt") for path in (whole.path, written)]
    assert all(mark.pop("trainer.pt") for mark in marks)  # whose pickle has a random id
    assert marks[0] == marks[1]  # byte for byte
    assert str(states[0]["optimizer"][0]["param_groups"]) == str(states[1]["optimizer"][0]["param_groups"])
    for moments in zip(*(state["optimizer"][0]["state"].values() for state in states), strict=True):
        assert all(torch.equal(moments[0][key], moments[1][key]) for key in moments[0])
    load_checkpoint(checkpoint.Checkpoint(written, 1), policy, trainer)
    assert trainer.num_done == 0


def test_a_second_request_waits_for_the_first(tmp_path: Path) -> None:
    policy, _ = parts(None)
    writer, order = CheckpointWriter(pytest.fail), list[str]()

    def write(state: checkpoint.CheckpointState) -> None:
        time.sleep(0.05)
        write_checkpoint(tmp_path, state)
        order.append(f"written {state.update}")

    def collect(update: int) -> checkpoint.CheckpointState:
        order.append(f"collected {update}")
        return collect_state(policy, None, {"update": update})

    for update in (1, 2):
        writer.save(partial(collect, update), write)
    writer.wait()
    assert order == ["collected 1", "written 1", "collected 2", "written 2"]
    assert writer.waited_s >= 0.05


def test_names_that_share_a_weight_share_its_copy_and_memory_is_used_again() -> None:
    weight, room = torch.arange(12.0).reshape(3, 4), HostCopy()
    nest = {"a": weight, "b": weight, "c": [weight.T, {"d": 7}]}
    assert room.count_new_bytes(nest) == 2 * weight.nbytes
    first = room.take_copy(nest)
    assert first["a"] is first["b"] and first["a"].data_ptr() != weight.data_ptr()
    assert torch.equal(first["c"][0], weight.T) and first["c"][0].stride() == weight.T.stride()
    assert room.count_new_bytes(nest) == 0
    weight.add_(1)
    assert torch.equal(first["a"], weight - 1)
    assert room.take_copy(nest)["a"].data_ptr() == first["a"].data_ptr()


@pytest.mark.gpu
def test_copies_of_a_gpu_are_page_locked_and_complete() -> None:
    weight, room = torch.arange(2.0**22, device="cuda").to(torch.bfloat16).reshape(2048, -1), HostCopy()
    for _ in range(2):
        weight.mul_(2)
        copied = room.take_copy({"a": weight, "b": weight.T})
        assert copied["a"].is_pinned() and torch.equal(copied["a"], weight.cpu())
        assert torch.equal(copied["b"], weight.T.cpu())
        assert room.count_new_bytes({"a": weight, "b": weight.T}) == 0


def test_the_best_weights_are_written_once_and_outlive_their_checkpoint(tmp_path: Path) -> None:
    policy, trainer = parts("own")
    state = collect_state(policy, trainer, {"update": 1})
    path, best = write_checkpoint(tmp_path, state, is_best=True).path, tmp_path / "best"
    for name in ("model.safetensors", "critic/model.safetensors"):
        assert (best / name).samefile(path / name)
    assert not (best / "config.json").samefile(path / "config.json")  # may be edited
    assert not (best / "trainer.pt").exists()
    disturb(policy)
    write_checkpoint(tmp_path, collect_state(policy, trainer, {"update": 2}))
    prune_checkpoints(tmp_path, keep=1)
    assert not path.exists() and find_damage(best) is None


def test_without_memory_for_a_copy_training_waits_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, trainer = parts(None)
    notes: list[str] = []
    writer = CheckpointWriter(notes.append)
    monkeypatch.setattr(checkpoint_writer, "SPARE_BYTES", 2**60)
    for update in (1, 2):
        writer.save(
            partial(collect_state, policy, trainer, {"update": update}), partial(write_checkpoint, tmp_path)
        )
        assert find_damage(tmp_path / f"update-{update:06d}") is None  # at once
    assert len(notes) == 1 and notes[0].startswith(
        "training waits while checkpoints are written (a copy needs"
    )


def test_marks_of_earlier_versions_are_verified(tmp_path: Path) -> None:
    policy, _ = parts(None)
    path = save_checkpoint(tmp_path, policy, None, {"update": 1}).path
    marks = {}
    for name in json.loads((path / "complete.json").read_text()):
        data = (path / name).read_bytes()
        marks[name] = f"{len(data)}:{hashlib.blake2b(data, digest_size=16).hexdigest()}"
    (path / "complete.json").write_text(json.dumps(marks))
    assert find_damage(path) is None
    (path / "loop.json").write_text('{"update": 2}')
    assert find_damage(path) == "loop.json has changed or is cut short"


def test_a_full_disk_is_told_and_older_checkpoints_stay(tmp_path: Path) -> None:
    queue = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=_fill_disk, args=(tmp_path, queue))
    child.start()
    child.join(LIMIT_S)
    assert child.exitcode == 0
    text = queue.get()
    assert "update-000002 could not be written (File too large): free some disk space" in text
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["update-000001"]
    assert find_damage(tmp_path / "update-000001") is None


def _fill_disk(folder: Path, queue: multiprocessing.SimpleQueue[str]) -> None:
    writer = CheckpointWriter(print)
    policy, trainer = parts(None)
    writer.save(partial(collect_state, policy, trainer, {"update": 1}), partial(write_checkpoint, folder))
    writer.wait()
    state = replace(collect_state(policy, trainer, {"update": 2}), trainer={"moments": torch.zeros(10**6)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 10**6, 3 * 10**6))
    writer.save(lambda: state, partial(write_checkpoint, folder))
    try:
        writer.wait()
    except InfraError as error:
        queue.put(str(error))


def test_a_kill_in_mid_write_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_write_much, args=(tmp_path,))
    child.start()
    limit = time.monotonic() + LIMIT_S
    while not any(path.stat().st_size > 2**24 for path in tmp_path.glob(".update-000002.*/trainer.pt")):
        assert child.is_alive() and time.monotonic() < limit
        time.sleep(0.001)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert list(tmp_path.glob(".update-000002.*")) and not (tmp_path / "update-000002").exists()
    found = find_latest_checkpoint(tmp_path, pytest.fail)
    assert found is not None and found.update == 1
    sweep_leftovers(tmp_path, after=1)
    assert [path.name for path in tmp_path.iterdir()] == ["update-000001"]


def _write_much(folder: Path) -> None:
    writer = CheckpointWriter(print)
    policy, trainer = parts(None)
    writer.save(partial(collect_state, policy, trainer, {"update": 1}), partial(write_checkpoint, folder))
    state = replace(
        collect_state(policy, trainer, {"update": 2}), trainer={"moments": torch.zeros(5 * 10**7)}
    )
    writer.save(lambda: state, partial(write_checkpoint, folder))
    writer.wait()
