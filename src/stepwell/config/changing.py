"""Which settings of a run may change when it resumes (`--resume RUN key=value`), and why others may not.

    stored settings, wanted settings ──► changes ──► allowed: reported and recorded
                                                 └─► refused: each one with its reason

A change is sound if nothing that the run has kept (weights, optimizer, episodes in the pool, the order of
tasks) depends on the old value. The longest entry of `RULES` that is a prefix of the setting decides. `name`
and `folder` only say where a run is kept and may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.config.renamed import rename_tables
from stepwell.config.run import RunConfig
from stepwell.config.writing import flatten_tables, format_toml
from stepwell.core.errors import ConfigError

MEASURES = ("eval.num_tasks", "eval.samples_per_task", "eval.temperature")
"""With other values of these, held-out success cannot be compared."""

_PLACES = ("name", "folder")


@dataclass(frozen=True, slots=True)
class Rule:
    """Whether settings below a name may change; `reason` is shown to the user."""

    is_allowed: bool
    reason: str


_EVEN = "the order of tasks and the groups in the pool follow from it"
RULES: Mapping[str, Rule] = {
    "train.num_updates": Rule(True, "a falling schedule is stretched to the new length from here on"),
    "train.max_env_steps": Rule(True, "only decides when the run ends"),
    "train.max_seconds": Rule(True, "only decides when the run ends"),
    "train.max_silent_updates": Rule(True, "only decides when the run ends"),
    "train.max_env_retries": Rule(True, "concerns later episodes only"),
    "train.episode_timeout_s": Rule(True, "concerns later episodes only"),
    "train.optimizer.learning_rate": Rule(True, "is applied in every update"),
    "train.optimizer.muon_learning_rate": Rule(True, "is applied in every update"),
    "train.optimizer.grad_clip": Rule(True, "is read in every update"),
    "train.critic_learning_rate": Rule(True, "is applied in every update"),
    "train.critic_epochs": Rule(True, "concerns later updates only"),
    "train.measure_credit": Rule(True, "only decides what is reported"),
    "train.schedule": Rule(True, "the learning rate follows from the number of the update"),
    "train.warmup_updates": Rule(True, "the learning rate follows from the number of the update"),
    "train.final_learning_rate": Rule(True, "the learning rate follows from the number of the update"),
    "train.guard": Rule(True, "concerns later updates and evaluations only"),
    "train.max_grad_norm": Rule(True, "is read in every update"),
    "train.token_budget": Rule(True, "the gradient is the same for every budget, up to rounding"),
    "train.micro_batch": Rule(True, "the gradient is the same for every size, up to rounding"),
    "train.update_epochs": Rule(True, "concerns later updates only"),
    "train.minibatches": Rule(True, "concerns later updates only"),
    "train": Rule(False, _EVEN),
    "train.optimizer": Rule(False, "the stored state of the optimizer was made with it"),
    "sampling": Rule(True, "every step records how it was sampled"),
    "eval": Rule(True, "concerns later evaluations only"),
    "checkpoint": Rule(True, "only decides what is kept"),
    "monitor": Rule(True, "only decides what is shown"),
    "parity": Rule(True, "only decides when a difference stops the run"),
    "num_threads": Rule(True, "sums may be rounded differently from here on"),
    "engine": Rule(True, "sums may be rounded differently from here on"),
    "engine.max_length": Rule(False, "it decides what a prompt can hold"),
    "engine.seed": Rule(False, "all sampling follows from it"),
    "policy.device": Rule(True, "sums may be rounded differently from here on"),
    "policy.gradient_checkpointing": Rule(True, "only saves memory"),
    "policy.cuda_graphs": Rule(True, "sums may be rounded differently from here on"),
    "policy": Rule(False, "the stored weights belong to the old one"),
    "own_agent.num_processes": Rule(True, "only decides where episodes run"),
    "own_agent.concurrency": Rule(True, "only decides where episodes run"),
    "own_agent.memory_mb": Rule(True, "concerns later episodes only"),
    "own_agent.max_failed_share": Rule(True, "only decides when the run ends"),
    "own_agent.learn_from_errors": Rule(True, "concerns later updates only"),
    "own_agent": Rule(False, "the run learns with its own agent and tasks"),
    "workers": Rule(True, "only decides where work runs, and how far episodes may run ahead"),
    "workers.mode": Rule(False, "episodes in the pool were played for the old mode"),
    "workers.global_batch": Rule(False, _EVEN),
    "pool.durable": Rule(True, "concerns later commits only"),
    "pool": Rule(False, "its episodes are in the old one"),
    "env": Rule(False, "earlier results belong to the old environment"),
    "agent": Rule(False, "the policy has learnt the old prompts"),
    "rewards": Rule(False, "critic and optimizer have learnt the old rewards"),
    "outcome": Rule(True, "concerns later updates only"),
    "recipe": Rule(False, "critic, reference and optimizer were made for the old recipe"),
    "offline": Rule(False, "the order of trajectories follows from it"),
    "curriculum": Rule(False, "the tasks of later phases follow from it"),
    "replay": Rule(False, "what later updates replay follows from it"),
    "warm_start": Rule(False, "the warm start is over"),
    "seed": Rule(False, "tasks, episodes and new weights follow from it"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One setting with a new value."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key} {_format_value(self.old)} -> {_format_value(self.new)}"

    @property
    def is_measure(self) -> bool:
        """Whether figures before and after it cannot be compared."""
        return self.key in MEASURES

    @property
    def rule(self) -> Rule:
        """The rule for this setting; settings without an entry may not change."""
        parts = self.key.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next(
            (RULES[name] for name in names if name in RULES), Rule(False, "what is kept may depend on it")
        )


def find_changes(stored: Mapping[str, Any], wanted: RunConfig) -> list[Change]:
    """Where `wanted` differs from stored settings. A setting newer than those had its default."""
    old = {**_flatten_set(RunConfig().model_dump(mode="json")), **_flatten_set(rename_tables(stored))}
    new = _flatten_set(wanted.model_dump(mode="json"))
    keys = [key for key in dict.fromkeys((*new, *old)) if key not in _PLACES]
    changes = [Change(key, old.get(key), new.get(key)) for key in keys]
    return [change for change in changes if change.old != change.new]


def require_sound(changes: Sequence[Change], where: str) -> None:
    """Refuse changes with which a run cannot resume, all of them in one error."""
    refused = [change for change in changes if not change.rule.is_allowed]
    if not refused:
        return
    reasons = "; ".join(f"{change} is refused, because {change.rule.reason}" for change in refused)
    raise ConfigError(
        f"--resume {where}: {reasons}. Undo the change (here or in config.toml), or start a new run from "
        f"the weights of this one: policy.model={where}/checkpoints/best"
    )


def _flatten_set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every value that is set, by its dotted name."""
    return {
        ".".join(path): value for path, value in flatten_tables(values) if value is not None and value != {}
    }


def _format_value(value: Any) -> str:
    return "none" if value is None else format_toml(value)
