"""The state of the training loop, and when it is over.

`LoopState` is what a checkpoint keeps of the loop besides weights and optimizer. Whether a run is over
follows from it, the settings and the time: limits reached, good enough, no better for long, or no actions.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stepwell.config.outputs import EvalConfig
from stepwell.config.training import TrainConfig
from stepwell.core.process_memory import measure_tree_memory_mb

if TYPE_CHECKING:
    from stepwell.training.checkpoint import Checkpoint

SILENCE = 0.05  # with fewer actions per episode, an agent that once acted has stopped acting


@dataclass(slots=True)
class LoopState:
    """What was done so far."""

    update: int = 0
    env_steps: int = 0
    time_s: float = 0.0
    best: float = -1.0
    num_since_best: int = 0
    num_silent: int = 0  # updates in a row whose episodes held no action
    before: dict[str, float] | None = None
    last: dict[str, float] | None = None
    warm_start_s: float = 0.0
    evaluated_at: int | None = None  # the update of `last`
    best_update: int | None = None
    best_values: dict[str, float] | None = None
    good_update: int | None = None  # the last evaluation that was no fall (`success_guard.py`)
    num_rollbacks: int = 0
    pace: dict[str, float] = field(default_factory=dict)  # how long parts take (`time_left.py`)

    @classmethod
    def of(cls, saved: Checkpoint) -> LoopState:
        """The loop's part of a checkpoint. An older one does not say when it was evaluated."""
        values = saved.loop["state"]
        return cls(**{"evaluated_at": saved.update if values["last"] else None, **values})

    @property
    def is_evaluated(self) -> bool:
        """Whether the present weights were evaluated."""
        return self.evaluated_at == self.update

    def forget_best(self) -> None:
        """Forget the best evaluation, because success is measured differently from now on."""
        self.best, self.num_since_best, self.best_update, self.best_values = -1.0, 0, None, None

    def as_dict(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return asdict(self)

    def describe_progress(self, train: TrainConfig) -> dict[str, Any]:
        """What a status reply of the control socket says."""
        progress = {"update": self.update, "num_updates": train.num_updates, "env_steps": self.env_steps}
        return {**progress, "memory_mb": round(measure_tree_memory_mb(os.getpid()))}

    def count_update(self, num_actions: int, num_episodes: int, *, is_fresh: bool) -> None:
        """Count one more update. Only an agent that has acted before can stop acting."""
        is_silent = is_fresh and self.env_steps > 0 and num_actions < SILENCE * num_episodes
        self.num_silent = self.num_silent + 1 if is_silent else 0
        self.update += 1
        self.env_steps += num_actions

    def count_eval(self, values: dict[str, float]) -> bool:
        """Count one more evaluation; True if it is the best so far."""
        self.last, self.evaluated_at = values, self.update
        is_best = values["success"] > self.best
        self.num_since_best = 0 if is_best else self.num_since_best + 1
        if is_best:
            self.best, self.best_update, self.best_values = values["success"], self.update, values
        return is_best

    def limit_reached(self, train: TrainConfig, time_s: float) -> str | None:
        """The limit that ends the run, as text (empty after the last update); None: it continues."""
        if self.update >= train.num_updates:
            return ""
        if train.max_env_steps is not None and self.env_steps >= train.max_env_steps:
            return f"train.max_env_steps ({train.max_env_steps}) reached: {self.env_steps}"
        if train.max_seconds is not None and time_s - self.warm_start_s >= train.max_seconds:
            return f"train.max_seconds ({train.max_seconds:g}) reached after {self.update} updates"
        if 0 < train.max_silent_updates <= self.num_silent:
            return f"almost no actions in {self.num_silent} updates (train.max_silent_updates)"
        return None

    def stops_early(self, evaluation: EvalConfig) -> bool:
        """Whether the last evaluation was good enough, or the last ones were no better."""
        goal, patience = evaluation.stop_at, evaluation.patience
        is_good = goal is not None and self.last is not None and self.last["success"] >= goal
        return is_good or (patience is not None and self.num_since_best >= patience)
