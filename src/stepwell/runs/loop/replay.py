"""The replay buffer of a run, from its settings.

Which logprobs replayed steps carry: those of the engine that sampled them, with the version of its weights.
A loss that compares with the reference or with nothing (`webrl_loss`, `awr_loss`, imitation) does not read
them. A loss with a ratio (`ppo_loss`) gets steps of an older version, which the trainer corrects as it does
in an asynchronous run: the ratio is taken to the weights at the start of the update, and the step is weighted
by the truncated ratio of these to the engine's. Credit that compares siblings cannot use a replayed
trajectory, because it was chosen for its success; such a recipe is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError
from stepwell.curriculum import PerplexityBand, ReplayBuffer, ScoreFiles
from stepwell.pool import TrajectorySummary
from stepwell.runs.build.components import Components
from stepwell.runs.build.phases import find_phase_length
from stepwell.runs.loop.task_feeds import find_group_size, find_update

FOLDER = "replay"


def is_replay_wanted(config: RunConfig, recipe: Recipe) -> bool:
    """Whether settings, or else the recipe, ask for replay; an offline run has none."""
    if config.offline.pool is not None:
        return False
    return recipe.replay if config.replay.enabled is None else config.replay.enabled


def check_replay(config: RunConfig, recipe: Recipe) -> None:
    """Refuse replay where its steps could not be learnt from."""
    fix = "set replay.enabled=false, or choose another recipe, such as webrl, awr or steppo"
    if recipe.needs_groups:
        raise ConfigError(
            f"replay.enabled: recipe {recipe.name} compares siblings of one rollout, and a replayed success "
            f"has none; {fix}"
        )
    if recipe.flat_sequence:
        raise ConfigError(
            f"replay.enabled: recipe {recipe.name} trains whole sequences, so that single steps cannot be "
            f"left out; {fix}"
        )
    vla = config.policy.vla
    if vla is not None and vla.head == "flow":
        raise ConfigError(
            "replay.enabled: a flow head has densities, no probabilities, so its actions have no perplexity; "
            "set replay.enabled=false, or policy.vla.head=token"
        )


def build_replay(
    components: Components, folder: Path, run: str, count_updates: Callable[[], int]
) -> ReplayBuffer | None:
    """The buffer that settings ask for; None without one. `count_updates` gives the updates made so far."""
    config, replay = components.config, components.config.replay
    if not is_replay_wanted(config, components.recipe):
        return None
    check_replay(config, components.recipe)
    group_size = find_group_size(config, components.recipe)
    is_async, length = config.workers.mode != "off", find_phase_length(config, components.recipe)

    def is_learnt(entry: TrajectorySummary) -> bool:
        if is_async:  # played ahead: only a checkpoint knows what was learnt from
            return entry.state == "consumed"
        return find_update(entry.group or entry.id, config, group_size) <= count_updates()

    return ReplayBuffer(
        components.pool,
        run,
        components.policy,
        ScoreFiles(folder / FOLDER),
        PerplexityBand(replay.min_perplexity, replay.max_perplexity),
        is_learnt,
        (lambda update: (update - 1) // length * length + 1) if length else None,
        max_per_fresh=replay.max_per_fresh,
        with_failures=replay.with_failures,
        max_scored=replay.max_scored,
        seed=config.seed,
    )
