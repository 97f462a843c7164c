"""The parts of a robot's run, where they are others than those of a language agent.

    RobotEnv.world ─► VLAPolicy ─► ArrayEngine ─► Rollout(RobotPlayer)
                          └─► Trainer (the same)

`Parts` asks here when its world is a robot's. What a robot has no use for (agent, tokenizer,
renderer) is never built, and settings that only a language agent understands are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ArrayState, ConfigError, EnvError, RobotEnvDescription, Task, Trajectory
from stepwell.envs.batch import EnvBatch
from stepwell.rollout.episodes import Rollout
from stepwell.rollout.robot_demonstrations import ExpertSampler, demonstrate_robot
from stepwell.rollout.robot_player import PARTS, RobotPlayer

if TYPE_CHECKING:
    from stepwell.policies.vla import VLAPolicy


def check_settings(config: RunConfig, recipe: Recipe) -> None:
    """Refuse what a robot's run cannot do."""
    if config.own_agent.function is not None:
        raise ConfigError("own_agent.function: a robot's world is played by a robot policy; leave it out")
    if config.rewards.parts:
        raise ConfigError("rewards.parts: a robot's step has no text to reward; put it into the environment")
    if config.warm_start.chats is not None:
        raise ConfigError("warm_start.chats: a robot does not read chats; use warm_start.num_demos")
    if recipe.flat_sequence:
        raise ConfigError(f"recipe {recipe.name} learns from flat token sequences, which a robot has not")
    if missing := [part for part in recipe.reward_parts if part not in PARTS]:
        raise ConfigError(
            f"recipe {recipe.name} rewards {', '.join(missing)}; a robot's step has {', '.join(PARTS)}. "
            'Set recipe.reward_parts, such as ["task"]'
        )


def robot_policy(
    config: RunConfig, world: RobotEnvDescription, critic: Literal["none", "shared", "own"]
) -> VLAPolicy:
    """The policy that settings ask for, without a reference (the trainer freezes its own)."""
    from stepwell.policies.vla import VLAPolicy

    changes = {"critic": critic, "reference": False}
    return VLAPolicy.from_config(config.policy.model_copy(update=changes), world, config.seed)


def robot_player(config: RunConfig, recipe: Recipe) -> RobotPlayer:
    """What an episode records; `process` counts where its weight is set."""
    return RobotPlayer(
        config.env.name,
        parts=recipe.reward_parts or ("task",),
        optional_parts=recipe.optional_reward_parts,
        weights=config.rewards,
    )


def robot_demonstrations(
    envs: EnvBatch, player: RobotPlayer, tasks: list[Task], chunk: int, noise: float, seed: int
) -> list[Trajectory]:
    """The expert's episodes, in chunks; `noise` is the standard deviation added to its actions."""
    sampler = ExpertSampler(envs.envs, noise=noise)
    return demonstrate_robot(Rollout(envs, player, sampler), tasks, seed, chunk)


def check_state(name: str, world: RobotEnvDescription, observation: Any) -> None:
    """Refuse a world that shows something else than it says."""
    if not isinstance(observation, ArrayState):
        raise EnvError(f"{name} showed a {type(observation).__name__}; a robot's world shows arrays")
    for array, spec in world.arrays.items():
        found = observation.arrays.get(array)
        if found is None or found.shape != tuple(spec.shape) or str(found.dtype) != spec.dtype:
            told = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise EnvError(
                f"{name} says it shows {array} as {spec.dtype} {list(spec.shape)}, it shows {told}"
            )
