"""Checkpoints: complete directories from which a run continues bit for bit.

    collect_state ─► (a copy, `checkpoint_writer.py`) ─► write_checkpoint ─► prune_checkpoints

    checkpoints/update-000050/
        model.safetensors, config.json, tokenizer…   the policy in Hugging Face format, critic included
        trainer.pt                                   optimizer and counters
        shards/                                      by rank, with train.sharding = "full"
        loop.json                                    the state of the loop
        complete.json                                size and hash of every other file, written last

    checkpoints/best/                                the weights of the best evaluation, without trainer.pt

A checkpoint is written under a temporary name and renamed, so that a kill at any moment leaves the older ones
intact. If the best weights are those of a numbered checkpoint, their files are hard links to it: the bytes
are written once. `best` is renamed first: no numbered checkpoint knows of better weights than it holds.

`find_latest_checkpoint` takes the newest one whose files match `complete.json`; it reports and skips
a damaged one. `sweep_leftovers` removes the leftovers of a killed run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from stepwell.core import EncodingError, InfraError
from stepwell.core.text import take_first_line
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.policies.policy_files import PolicyContent
from stepwell.training.checkpoint_files import TRAINER, find_damage, link_weights, write_marks, write_tensors
from stepwell.training.policy import Policy
from stepwell.training.sharded_files import FOLDER
from stepwell.training.trainer import Trainer

BEST = "best"
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


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a checkpoint will hold: tensors of the run itself, or copies of them."""

    policy: Policy  # for names and configuration; weights are in `content`
    content: PolicyContent
    trainer: dict[str, Any] | None
    update: int
    loop: str
    save_shards: Callable[[Path], None] | None = None
    """Lets the ranks write their parts; only while training waits."""


def collect_state(policy: Policy, trainer: Trainer | None, loop: dict[str, Any]) -> CheckpointState:
    """Collect what a checkpoint holds, without a copy. Without a trainer: the policy only."""
    state, save_shards = None, None
    if trainer is not None and trainer.ranks is not None and trainer.config.sharding == "full":
        state, save_shards = trainer.read_counters(), trainer.ranks.save_shards
    elif trainer is not None:
        state = trainer.state_dict()
    text = json.dumps(loop, indent=1)
    return CheckpointState(policy, policy.read_content(), state, int(loop["update"]), text, save_shards)


def save_checkpoint(
    folder: Path, policy: Policy, trainer: Trainer | None, loop: dict[str, Any], name: str | None = None
) -> Checkpoint:
    """Write `folder/update-…` (or `folder/name`) atomically. Without a trainer: the policy only."""
    return write_checkpoint(folder, collect_state(policy, trainer, loop), name)


def write_checkpoint(
    folder: Path, state: CheckpointState, name: str | None = None, *, is_best: bool = False
) -> Checkpoint:
    """Write a collected state atomically; with `is_best` its weights are `folder/best` too."""
    path = folder / (name or f"{_PREFIX}{state.update:06d}")
    try:
        with write_directory_atomically(path) as fresh:
            state.policy.write_content(fresh, state.content)
            marks = {}
            if state.save_shards is not None:
                state.save_shards(fresh / FOLDER)
            if state.trainer is not None:
                marks[TRAINER] = write_tensors(fresh / TRAINER, state.trainer)
            (fresh / "loop.json").write_text(state.loop)
            write_marks(fresh, marks)
            if is_best:
                link_weights(fresh, folder / BEST)
    except (OSError, SafetensorError, RuntimeError) as error:  # safetensors and torch raise their own
        reason = getattr(error, "strerror", None) or take_first_line(error)
        raise InfraError(
            f"the checkpoint {path} could not be written ({reason}): "
            "free some disk space, lower checkpoint.keep or choose another `folder`, then continue with "
            "--resume; older ones are intact"
        ) from error
    return Checkpoint(path, state.update)


def load_checkpoint(checkpoint: Checkpoint, policy: Policy, trainer: Trainer) -> None:
    """Load a checkpoint's weights and optimizer."""
    load_policy(checkpoint.path, policy)
    # load to the CPU: optimizers move moments to the device of their parameters, but count steps on the host,
    # where reading them does not wait for the device
    state = torch.load(checkpoint.path / TRAINER, map_location="cpu", weights_only=True)
    shards = checkpoint.path / FOLDER
    trainer.load_state_dict(state, shards if shards.is_dir() else None)


def load_policy(path: Path, policy: Policy, *, actor_only: bool = False) -> None:
    """Load the weights of a directory into a policy of the same kind; the actor's alone into any."""
    dtype = str(policy.model.dtype).removeprefix("torch.")
    saved = type(policy).from_pretrained(path, dtype=dtype, device=policy.device)  # type: ignore[attr-defined]
    if actor_only:
        policy.model.load_state_dict(saved.model.state_dict())
        return
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
