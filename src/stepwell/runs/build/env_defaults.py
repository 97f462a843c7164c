"""Settings for a new environment: the preset `own`, fitted to measurements.

`stepwell train --env X` plays the oracle on a few training tasks and sets what the user did not:

    rewards.scale        one over the reward of a success, so that values are near 1
    rewards.format       per turn, so that all turns together pay `FORM_SHARE` of a success
    sampling.max_tokens  the longest demonstrated reply, with room for a longer one
    warm_start.num_demos 0 if the environment has no oracle

The fitted values are ordinary settings: they are printed, and `config.toml` of the run holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Trajectory
from stepwell.envs.registry import find_env_type
from stepwell.runs.build.components import Components
from stepwell.runs.build.reward_balance import average_success_pay
from stepwell.runs.plan.outline import resolve_outline

PRESET = "own"
NUM_PLAYED = 16
FORM_SHARE = 0.1
NO_ORACLE = (
    "{env} has no oracle (has_oracle = False), so there is no warm start: a tiny model that starts from "
    "random weights does not know the form of replies and will learn little. Give the environment an "
    "oracle(), or start from a model that follows instructions (policy.model, agent.guide=true)"
)


@dataclass(frozen=True, slots=True)
class FittedSettings:
    """Settings as `key=value`, and notes about them for the user."""

    overrides: tuple[str, ...]
    notes: tuple[str, ...]


def load_own_config(env: str, settings: list[str]) -> tuple[RunConfig, tuple[str, ...]]:
    """The preset `own` for an environment with the user's settings on top, and notes on what was fitted."""
    named = f"env.name={env}"
    if find_env_type(env).is_robot:
        raise ConfigError(
            f"--env {env}: this is a robot environment, which needs a robot policy; start from the preset "
            f"metaworld-reach: stepwell train metaworld-reach env.name={env} env.options={{}}"
        )
    fit = fit_to_env(load_config(PRESET, [named, *settings]))
    return load_config(PRESET, [named, *fit.overrides, *settings]), fit.notes


def fit_to_env(config: RunConfig) -> FittedSettings:
    """Fit settings to the environment of `config` by playing its oracle."""
    components = Components(config, for_plan=True, find_model=resolve_outline)
    try:
        if not components.envs.envs[0].has_oracle:
            return FittedSettings(("warm_start.num_demos=0",), (NO_ORACLE.format(env=config.env.name),))
        demonstrations = components.play_demonstrations(NUM_PLAYED, 0.0, config.seed)
        return _fit_to_demonstrations(
            demonstrations, components.language.agent.description.max_turns, config.rewards.scale
        )
    finally:
        components.close()


def _fit_to_demonstrations(demonstrations: list[Trajectory], max_turns: int, scale: float) -> FittedSettings:
    longest = max((step.num_units for t in demonstrations for step in t.steps), default=0)
    room = f"sampling.max_tokens={longest + max(4, longest // 2)}"
    paid = average_success_pay(demonstrations, scale)
    if paid is None:
        note = (
            f"no success of the oracle in {len(demonstrations)} training tasks pays a positive reward, so "
            "rewards are unchanged (rewards.scale, rewards.format). Check it: stepwell envs check"
        )
        return FittedSettings((room, "rewards.format=0.0"), (note,))
    form = FORM_SHARE * paid / max_turns
    return FittedSettings(
        (room, f"rewards.scale={1 / paid:.3g}", f"rewards.format={form:.3g}"),
        (
            f"fitted to the environment: a success pays {paid:.3g}, so rewards.scale={1 / paid:.3g} and "
            f"rewards.format={form:.3g} ({FORM_SHARE:.0%} of a success over {max_turns} turns); {room}",
        ),
    )
