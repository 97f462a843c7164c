"""The guard against collapse: held-out success that falls further than chance explains.

    guard_success: measure_fall ─► note ─► roll_back: weights and optimizer of the last good evaluation

An evaluation is good unless its success lies more than `fall_threshold` standard errors below the best so
far. After a fall, `roll_back` loads the checkpoint of the last good evaluation and lowers the learning rates.
The count of updates continues, so the next update plays other episodes and does not repeat the fall.

Invariant: everything that decides is in the loop's state and the numbered checkpoints, so a resumed run rolls
back where the uninterrupted one would have. For this a run that may roll back writes a checkpoint after every
evaluation, and the one of the last good evaluation is not pruned.
"""

from __future__ import annotations

from pathlib import Path

from stepwell.config.guard import GuardConfig
from stepwell.core.statistics import compare_shares
from stepwell.runs.loop.loop_state import LoopState
from stepwell.training import Trainer, checkpoint
from stepwell.training.checkpoint_files import find_damage
from stepwell.training.policy import Policy


def guard_success(
    state: LoopState, config: GuardConfig, folder: Path, policy: Policy, trainer: Trainer
) -> str | None:
    """Judge the last evaluation. After a fall: a sentence about it, and a roll-back if settings ask."""
    errors = measure_fall(state, config)
    if errors is None:
        state.good_update = state.update
        return None
    text = describe_fall(state, errors)
    if config.on_fall != "roll_back":
        return text
    return f"{text}; {roll_back(folder, state, policy, trainer, config.learning_rate_factor)}"


def measure_fall(state: LoopState, config: GuardConfig) -> float | None:
    """How many standard errors the last evaluation lies below the best; None if chance explains it."""
    best, last = state.best_values, state.last
    if config.on_fall == "ignore" or best is None or last is None:
        return None
    counts = [values.get("num_independent", values["num_tasks"]) for values in (best, last)]
    errors = compare_shares(best["success"], counts[0], last["success"], counts[1])
    return errors if errors > config.fall_threshold else None


def describe_fall(state: LoopState, errors: float) -> str:
    """A sentence about the fall."""
    assert state.best_values is not None and state.last is not None
    return (
        f"held-out success fell from {state.best_values['success']:.2f} at update {state.best_update} to "
        f"{state.last['success']:.2f}: {errors:.1f} standard errors, which chance does not explain"
    )


def roll_back(folder: Path, state: LoopState, policy: Policy, trainer: Trainer, rate_factor: float) -> str:
    """Load the last good weights; returns a sentence about it. Without such weights nothing changes."""
    path = folder / f"update-{state.good_update or 0:06d}"
    damage = "it was not kept" if not path.exists() else find_damage(path)
    if state.good_update is None or damage is not None:
        return f"the weights stay: there is no intact checkpoint to roll back to ({path.name}: {damage})"
    num_done, factor = trainer.num_done, trainer.rate_factor
    checkpoint.load_checkpoint(checkpoint.Checkpoint(path, state.good_update), policy, trainer)
    trainer.num_done, trainer.rate_factor = num_done, factor * rate_factor
    state.num_rollbacks += 1
    state.evaluated_at = None  # the last evaluation was of other weights
    return (
        f"rolled back to the weights of update {state.good_update} ({state.num_rollbacks} so far); learning "
        f"rates are {trainer.rate_factor:g} times those of the settings from here on"
    )
