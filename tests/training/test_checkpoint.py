"""Checkpoints: whole or not there, and nothing a kill leaves behind stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.runs.small import warmed_model
from transformers.utils import logging

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import EncodingError, InfraError
from stepwell.policies import CausalLMPolicy
from stepwell.training import Trainer, list_checkpoints, load_checkpoint, save_checkpoint
from stepwell.training.checkpoint import (
    find_damage,
    find_latest_checkpoint,
    prune_checkpoints,
    require_whole,
    sweep_leftovers,
)


def parts(critic: str | None = "shared", **more: object) -> tuple[CausalLMPolicy, Trainer]:
    policy = CausalLMPolicy.from_pretrained(warmed_model(), critic=critic, **more)  # type: ignore[arg-type]
    return policy, Trainer(policy, RECIPES["steppo" if critic else "grpo"], TrainConfig())


def disturb(policy: CausalLMPolicy) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01)


@pytest.mark.parametrize(
    ("critic", "more"), [("shared", {}), ("own", {}), (None, {}), ("shared", {"lora": {"r": 2}})]
)
def test_weights_come_back_as_they_were(tmp_path: Path, critic: str | None, more: dict[str, object]) -> None:
    policy, trainer = parts(critic, **more)
    disturb(policy)
    saved = save_checkpoint(tmp_path, policy, trainer, {"update": 7, "words": "kept"})
    assert saved.path.name == "update-000007" and saved.loop == {"update": 7, "words": "kept"}
    listed = json.loads((saved.path / "complete.json").read_text())
    files = {p.relative_to(saved.path).as_posix() for p in saved.path.rglob("*") if p.is_file()}
    assert set(listed) == files - {"complete.json"}
    expected = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    disturb(policy)
    load_checkpoint(saved, policy, trainer)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in policy.state_dict().items())


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "critic/model.safetensors", "loop.json"])
def test_one_changed_byte_anywhere_is_noticed(tmp_path: Path, name: str) -> None:
    policy, trainer = parts("own")
    path = save_checkpoint(tmp_path, policy, trainer, {"update": 1}).path
    assert find_damage(path) is None
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    assert find_damage(path) == f"{name} has changed or is cut short"
    (path / name).unlink()
    assert find_damage(path) == f"{name} is missing"
    with pytest.raises(EncodingError, match=r"is missing\. Choose another checkpoint"):
        require_whole(path)


def test_the_newest_whole_checkpoint_is_taken_and_the_damaged_named(tmp_path: Path) -> None:
    policy, _ = parts(None)
    for update in (1, 2, 10):
        save_checkpoint(tmp_path, policy, None, {"update": update})
    (tmp_path / "update-000010/complete.json").write_text("{")
    told: list[str] = []
    found = find_latest_checkpoint(tmp_path, told.append)
    assert found is not None and found.update == 2
    assert len(told) == 1 and "update-000010 is damaged (complete.json is not readable)" in told[0]
    assert find_latest_checkpoint(tmp_path / "nowhere", told.append) is None


def test_only_the_newest_are_kept_and_the_best_besides(tmp_path: Path) -> None:
    policy, _ = parts(None)
    for update in range(4):
        save_checkpoint(tmp_path, policy, None, {"update": update})
    save_checkpoint(tmp_path, policy, None, {"update": 1}, name="best")
    prune_checkpoints(tmp_path, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["update-000002", "update-000003"]
    assert find_damage(tmp_path / "best") is None


def test_what_a_kill_left_is_cleared_away_and_what_it_interrupted_put_back(tmp_path: Path) -> None:
    policy, _ = parts(None)
    save_checkpoint(tmp_path, policy, None, {"update": 3})
    save_checkpoint(tmp_path, policy, None, {"update": 9})
    best = save_checkpoint(tmp_path, policy, None, {"update": 3}, name="best").path
    (tmp_path / ".best.old.abc").mkdir()
    best.rename(tmp_path / ".best.old.abc/best")  # killed between the two renames of a replacement
    (tmp_path / ".update-000012.xyz/policy").mkdir(parents=True)
    (tmp_path / ".update-000001.gone").mkdir()
    sweep_leftovers(tmp_path, after=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "update-000003"]
    assert find_damage(tmp_path / "best") is None


def test_saving_draws_no_progress_bar_and_leaves_the_setting_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    policy, trainer = parts("own")
    logging.enable_progress_bar()
    save_checkpoint(tmp_path, policy, trainer, {"update": 1})
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    policy, _ = parts(None)
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(InfraError, match=r"could not be written .*--resume; older ones are intact"):
        save_checkpoint(tmp_path / "checkpoints", policy, None, {"update": 1})
