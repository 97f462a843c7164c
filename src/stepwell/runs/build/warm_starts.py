"""Warm starts kept on disk: runs with the same warm start make it once.

    warm_start.cache/KEY/          the policy after the warm start, complete or absent
    warm_start.cache/KEY.lock      held by the run that makes it; others wait for it

The key is a hash of every setting that the warm start depends on: environment, agent, policy with its critic
and what that is taught, rewards, the table `warm_start`, what its goals use (if it has any), the seed. Chats
and the user's own reward functions count by their content.

Invariants
* A run that finds its warm start continues exactly like the one that made it: weights are stored in full,
  and nothing later depends on how they were made.
* With `warm_start.value_coef = 0` the critic is not taught and does not count: runs with any critic share one
  warm start, and a critic of its own begins with the warm actor's backbone (`training/critics.py`).
* A damaged warm start is made again. A run that dies while making one leaves only a lock file, which the
  system has released.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from stepwell.algos.recipes import Recipe
from stepwell.config.training import WarmStartConfig
from stepwell.core import InfraError
from stepwell.core.disk import make_write_error
from stepwell.core.user_objects import is_import_path
from stepwell.data.rows import read_rows
from stepwell.rewards import load_own_parts
from stepwell.runs.build.components import Components

_WHERE = {"name", "folder", "num_threads", "checkpoint", "monitor", "pool", "workers"}
_LATER = {"recipe", "train", "parity", "offline", "curriculum", "replay", "outcome"}


NO_DEMOS = (
    "no demonstrations, since no oracle solves tasks of your own (own_agent.tasks); "
    "warm_start.chats takes examples of yours"
)


def has_goal(warm: WarmStartConfig) -> bool:
    """Whether the warm start may end before its last update."""
    goals = warm.stop_at, warm.stop_at_format, warm.stop_at_grounding
    return any(goal is not None for goal in goals)


def describe_goal(warm: WarmStartConfig) -> str:
    """The goal of a warm start, in words."""
    form = f"{warm.stop_at_format:.0%} of replies have the required form" if warm.stop_at_format else ""
    right = f"descriptions are {warm.stop_at_grounding:.0%} right" if warm.stop_at_grounding else ""
    solved = f"{warm.stop_at:.0%} of training tasks are solved" if warm.stop_at else ""
    return " and ".join(filter(None, (form, right, solved)))


def is_warm(warm: WarmStartConfig, values: Mapping[str, float]) -> bool:
    """Whether an evaluation on training tasks reaches every goal of the settings."""
    knows_form = values.get("format_share", 1.0) >= (warm.stop_at_format or 0.0)
    sees = values.get("grounding_share", 1.0) >= (warm.stop_at_grounding or 0.0)
    return knows_form and sees and values["success"] >= (warm.stop_at or 0.0)


def make_cache_key(components: Components) -> str:
    """The folder name of the warm start of these settings."""
    config, recipe = components.config, components.recipe
    values = config.model_dump(mode="json", exclude=_WHERE | _LATER)
    del values["warm_start"]["cache"], values["warm_start"]["reward_parts"]
    values["seed"] = config.start_seed
    if has_goal(config.warm_start):  # which is measured on tasks that are played
        values["eval"] = {name: values["eval"][name] for name in ("num_tasks", "temperature")}
    else:
        del values["eval"], values["sampling"]
    values["policy"]["critic"] = None
    if config.warm_start.value_coef:
        values["policy"]["critic"] = components.critic_kind
        values["critic"] = _describe_critic_targets(recipe)
        values["rewarded"] = [
            *components.demonstrated_parts,
            *(recipe.optional_reward_parts if config.rewards.process else ()),
        ]
    values["num_tasks"] = config.train.num_tasks
    if config.warm_start.chats is not None:  # the content of a file counts, not its name
        values["warm_start"]["chats"] = _hash_rows(config.warm_start.chats)
    values["own_rewards"] = [part.code_hash for part in load_own_parts(config.rewards.parts)]
    if is_import_path(config.agent.strategy):  # what a prompt style says counts, not its name
        values["agent"]["strategy"] = repr(components.language.agent.strategy)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _describe_critic_targets(recipe: Recipe) -> list[object] | None:
    """What the critic is taught (`training/critics.py`): λ does not count there.

    Built-in functions that teach final outcomes teach the same, whatever else they compute.
    """
    if recipe.value is None or recipe.credit is None:
        return None
    traits = recipe.credit_traits
    if traits.targets == "outcomes" and not is_import_path(recipe.credit.name):
        return [recipe.value.link, "outcomes", traits.reads, traits.reads_instructions]
    counted = {name: value for name, value in recipe.credit.kwargs.items() if not name.startswith("lam")}
    return [recipe.value.link, recipe.credit.name, counted]


def _hash_rows(source: str) -> str:
    rows = hashlib.sha256()
    for _, row in read_rows(source, "warm_start.chats"):
        rows.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return rows.hexdigest()


def load_or_make(
    components: Components, folder: Path, make: Callable[[], None], note: Callable[[str], None]
) -> None:
    """Load the warm policy from `folder`; or make it, and keep it there for other runs."""
    from stepwell.training.checkpoint import load_policy, save_checkpoint
    from stepwell.training.checkpoint_files import find_damage

    path = folder / make_cache_key(components)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("a")
    except OSError as error:
        raise make_write_error(folder, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and find_damage(path) is None:
            load_policy(path, components.policy, actor_only=not components.config.warm_start.value_coef)
            note(f"warm start: loaded from {path}")
            return
        make()
        try:
            save_checkpoint(folder, components.policy, None, {"update": 0}, name=path.name)
        except InfraError as error:
            note(f"warm start: not kept for other runs: {error}")
