"""Checkpoints: complete directories from which a run continues bit for bit.

    checkpoints/update-000050/
        model.safetensors, config.json, tokenizer…   the policy in Hugging Face format, critic included
        trainer.pt                                   optimizer and counters
        shards/                                      by rank, with train.sharding = "full"
        loop.json                                    the state of the loop
        complete.json                                size and hash of every other file, written last

A checkpoint is written under a temporary name and renamed, so that a kill at any moment leaves the older ones
intact. `find_latest_checkpoint` takes the newest one whose files match `complete.json`; it reports and skips
a damaged one. `sweep_leftovers` removes the leftovers of a killed run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from stepwell.core import EncodingError, InfraError
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.training.policy import Policy
from stepwell.training.sharded_files import FOLDER
from stepwell.training.trainer import Trainer

BEST = "best"
_COMPLETE = "complete.json"
_PREFIX = "update-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    update: int

    @property
    def loop(self) -> dict[str, Any]:
        """The stored state of the loop."""
        return dict(json.loads((self.path / "loop.json").read_text()))


def save_checkpoint(
    folder: Path,
    policy: Policy,
    trainer: Trainer | None,
    loop: dict[str, Any],
    name: str | None = None,
) -> Checkpoint:
    """Write `folder/update-…` (or `folder/name`) atomically. Without a trainer: the policy only."""
    update = int(loop["update"])
    path = folder / (name or f"{_PREFIX}{update:06d}")
    try:
        with write_directory_atomically(path) as fresh:
            policy.save_pretrained(fresh / "policy")
            for item in (fresh / "policy").iterdir():
                item.rename(fresh / item.name)
            (fresh / "policy").rmdir()
            if trainer is not None:
                _save_trainer(trainer, fresh)
            (fresh / "loop.json").write_text(json.dumps(loop, indent=1))
            files = {
                item.relative_to(fresh).as_posix(): _describe_file(item)
                for item in sorted(fresh.rglob("*"))
                if item.is_file() and item.name != _COMPLETE  # of the checkpoint it started from
            }
            (fresh / _COMPLETE).write_text(json.dumps(files, indent=1))
    except (OSError, SafetensorError, RuntimeError) as error:  # safetensors and torch raise their own
        raise InfraError(
            f"the checkpoint {path} could not be written ({_first_line(error)}): free some disk space, lower "
            "checkpoint.keep or choose another `folder`, then continue with --resume; older ones are intact"
        ) from error
    return Checkpoint(path, update)


def load_checkpoint(checkpoint: Checkpoint, policy: Policy, trainer: Trainer) -> None:
    """Load a checkpoint's weights and optimizer."""
    load_policy(checkpoint.path, policy)
    # load to the CPU: optimizers move moments to the device of their parameters, but count steps on the host,
    # where reading them does not wait for the device
    state = torch.load(checkpoint.path / "trainer.pt", map_location="cpu", weights_only=True)
    shards = checkpoint.path / FOLDER
    trainer.load_state_dict(state, shards if shards.is_dir() else None)


def _save_trainer(trainer: Trainer, folder: Path) -> None:
    """Write optimizer and counters: by every rank its part, if weights are in shards."""
    if trainer.ranks is not None and trainer.config.sharding == "full":
        trainer.ranks.save_shards(folder / FOLDER)
        torch.save(trainer.read_counters(), folder / "trainer.pt")
    else:
        torch.save(trainer.state_dict(), folder / "trainer.pt")


def load_policy(path: Path, policy: Policy) -> None:
    """Load the weights of a directory into a policy of the same kind."""
    dtype = str(policy.model.dtype).removeprefix("torch.")
    saved = type(policy).from_pretrained(path, dtype=dtype, device=policy.device)  # type: ignore[attr-defined]
    policy.load_state_dict(saved.state_dict())
    for ours, theirs in (
        (policy.critic, saved.critic),
        (policy.instruction_critic, saved.instruction_critic),
    ):
        if theirs is not None and theirs.link is not None:
            ours.choose_link(theirs.link)


def list_checkpoints(folder: Path) -> list[Path]:
    """List the directories of numbered checkpoints, oldest first, complete or not."""
    numbered = [path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]
    return sorted((path for path in numbered if path.is_dir()), key=_read_number)


def find_latest_checkpoint(folder: Path, tell: Callable[[str], None]) -> Checkpoint | None:
    """Find the newest complete checkpoint; `tell` is called for each damaged one that is skipped."""
    for path in reversed(list_checkpoints(folder)):
        problem = find_damage(path)
        if problem is None:
            return Checkpoint(path, _read_number(path))
        tell(f"{path} is damaged ({problem}); going back to the checkpoint before it")
    return None


def find_damage(path: Path) -> str | None:
    """Describe what is wrong with a checkpoint's files; None if nothing is."""
    listing = path / _COMPLETE
    if not listing.exists():
        return f"{_COMPLETE} is missing: it was not written to the end"
    try:
        marks = json.loads(listing.read_text())
    except ValueError:
        return f"{_COMPLETE} is not readable"
    for name, mark in marks.items():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if _describe_file(file) != mark:
            return f"{name} has changed or is cut short"
    return None


def require_whole(path: Path) -> None:
    """Refuse a damaged checkpoint that was requested by name."""
    problem = find_damage(path)
    if problem is not None:
        raise EncodingError(f"{path} cannot be used: {problem}. Choose another checkpoint")


def prune_checkpoints(folder: Path, keep: int, protected: int | None = None) -> None:
    """Delete all but the newest `keep` numbered checkpoints, and that of the update `protected`.

    The best one is not numbered.
    """
    for path in list_checkpoints(folder)[:-keep]:
        if _read_number(path) != protected:
            _delete_checkpoint(path)


def sweep_leftovers(folder: Path, after: int | None = None) -> None:
    """Remove the leftovers of a killed run: partial directories, and checkpoints after an update.

    A checkpoint that was being replaced when the run was killed is restored.
    """
    for kept in folder.glob(".*.old.*/*"):
        if not (folder / kept.name).exists():
            kept.rename(folder / kept.name)
    for left in folder.glob(".*"):
        shutil.rmtree(left, ignore_errors=True)
    for path in list_checkpoints(folder):
        if after is not None and _read_number(path) > after:
            _delete_checkpoint(path)


def _delete_checkpoint(path: Path) -> None:
    """Rename, then delete, so that a kill does not leave a partial checkpoint under its name."""
    gone = path.with_name(f".{path.name}.gone")
    path.rename(gone)
    shutil.rmtree(gone)


def _read_number(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _first_line(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).strip().split("\n")[0]


def _describe_file(path: Path) -> str:
    return f"{path.stat().st_size}:{hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()}"
