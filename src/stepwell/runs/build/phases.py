"""How many phases a run has, how long they are, and what makes their tasks: from its settings alone."""

from __future__ import annotations

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError
from stepwell.envs.base import Env
from stepwell.envs.registry import find_env_type

NUM_PHASES, NUM_TINY_PHASES = 8, 4


def find_phase_length(config: RunConfig, recipe: Recipe) -> int | None:
    """Updates of one phase; None: the run has no phases."""
    phases = config.curriculum
    if config.offline.pool is not None or phases.enabled is False:
        return None
    if phases.updates_per_phase is not None:
        return phases.updates_per_phase
    if not (phases.enabled or phases.num_phases or recipe.curriculum):
        return None
    count = phases.num_phases or (NUM_TINY_PHASES if config.policy.model.startswith("tiny") else NUM_PHASES)
    return max(1, -(-config.train.num_updates // count))


def find_phase_end(config: RunConfig, recipe: Recipe, update: int) -> int | None:
    """The last update of the phase of an update; None without phases."""
    length = find_phase_length(config, recipe)
    return None if length is None else -(-max(update, 1) // length) * length


def choose_generator(config: RunConfig, recipe: Recipe) -> str:
    """The name of what makes the tasks of a phase."""
    wanted, can_evolve = config.curriculum.generator, overrides(config, "make_variant")
    if wanted == "evolve" and not can_evolve:
        raise ConfigError(
            f"curriculum.generator: {config.env.name} has no variants of its tasks; define "
            "make_variant (docs/curriculum.md), or write a generator of your own"
        )
    if wanted == "endpoint" and not overrides(config, "read_instruction"):
        raise ConfigError(
            f"curriculum.generator: {config.env.name} cannot make a task from an instruction; define "
            "read_instruction (docs/curriculum.md), or write a generator of your own"
        )
    return wanted or ("evolve" if recipe.curriculum and can_evolve else "fresh")


def overrides(config: RunConfig, method: str) -> bool:
    """Whether the environment of a run has its own version of a class method of `Env`."""
    if config.own_agent.tasks is not None:
        return False
    kind = find_env_type(config.env.name)
    if not issubclass(kind, Env):
        return False
    own, base = getattr(kind, method), getattr(Env, method)
    return own.__func__ is not base.__func__
