"""The components of a robot's run.

    RobotEnv.description ─► VLAPolicy ─► ArrayEngine ─► Rollout(RobotPlayer)
                          └─► Trainer (the same as a language agent's)

A robot needs no agent, tokenizer or renderer. Settings that only a language agent understands are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.config.vla import VLAConfig
from stepwell.core import (
    ArrayState,
    ConfigError,
    EnvError,
    RobotEnvDescription,
    SamplingParams,
    Task,
    Trajectory,
)
from stepwell.policies.vla.parameter_count import count_parameters
from stepwell.rollout import Rollout
from stepwell.rollout.robot_demonstrations import ExpertSampler, demonstrate_robot
from stepwell.rollout.robot_player import PARTS, RobotPlayer
from stepwell.runs.build.resources import RunResources, close_built

if TYPE_CHECKING:
    from stepwell.engines import ArrayEngine
    from stepwell.policies.vla import VLAPolicy


@dataclass(eq=False)
class RobotBackend:
    """The components of a run in which a robot policy acts (`backend.py` says what each is)."""

    resources: RunResources
    is_robot: bool = True
    default_inflight: int = 1
    batch_judge: None = None
    image_store: None = None
    state_form: None = None

    def __post_init__(self) -> None:
        check_settings(self.resources.config, self.resources.recipe)

    @property
    def env_spec(self) -> RobotEnvDescription:
        """The environment's arrays, actions and limits."""
        spec: Any = self.resources.envs.envs[0].description
        assert isinstance(spec, RobotEnvDescription)
        return spec

    @cached_property
    def policy(self) -> VLAPolicy:
        """Without a reference: the trainer freezes its own."""
        from stepwell.policies.vla import VLAPolicy

        config = self.resources.config
        changes = {"critic": self.resources.critic_kind, "reference": False}
        return VLAPolicy.from_config(
            config.policy.model_copy(update=changes), self.env_spec, config.start_seed
        )

    @property
    def vla(self) -> VLAConfig:
        """The settings of the policy's model; those of a stored one are read from it."""
        policy = self.resources.config.policy
        is_new = "policy" not in self.__dict__ and not Path(policy.model).is_dir()
        return policy.vla or VLAConfig() if is_new else self.policy.model.shape.config

    @property
    def chunk(self) -> int:
        """Actions per step."""
        return self.vla.chunk

    def count_parameters(self) -> int:
        """Of policy and critic. A plain new policy is not built for it, which would load torch."""
        policy, critic = self.resources.config.policy, self.resources.critic_kind
        is_plain = policy.lora is None and policy.dtype == "float32" and policy.device == "cpu"
        if is_plain and not Path(policy.model).is_dir():
            return count_parameters(self.vla, self.env_spec.arrays, self.env_spec.action_dim, critic)
        return sum(parameter.numel() for _, parameter in self.policy.named_parameters())

    @cached_property
    def engine(self) -> ArrayEngine:
        from stepwell.engines import ArrayEngine  # imports torch

        if (name := self.resources.config.engine.backend) != "embedded":
            raise ConfigError(f"engine.backend: {name} serves language models; use embedded for robots")
        return ArrayEngine(self.policy.model, self.resources.config.engine)

    @cached_property
    def player(self) -> RobotPlayer:
        """The reward part `process` counts where its weight is set."""
        config, recipe = self.resources.config, self.resources.recipe
        return RobotPlayer(
            config.env.name,
            parts=recipe.reward_parts or ("task",),
            optional_parts=recipe.optional_reward_parts,
            weights=config.rewards,
        )

    @property
    def horizon(self) -> int:
        return -(-self.env_spec.max_actions // self.chunk)

    def sampling_params(self, temperature: float) -> SamplingParams:
        return SamplingParams(temperature=temperature)

    def make_rollout(self) -> Rollout:
        return Rollout(self.resources.envs, self.player, self.engine)

    def check_observation(self, observation: Any) -> None:
        check_state(self.resources.config.env.name, self.env_spec, observation)

    def repeat_tasks(self, tasks: Sequence[Task], num_demos: int) -> list[Task]:
        """Each task once, however few there are."""
        return list(tasks)

    def demonstrate(self, tasks: list[Task], noise: float, seed: int) -> list[Trajectory]:
        """The expert's episodes, in chunks; `noise` is the standard deviation added to its actions."""
        sampler = ExpertSampler(self.resources.envs.envs, noise=noise)
        rollout = Rollout(self.resources.envs, self.player, sampler)
        return demonstrate_robot(rollout, tasks, seed, self.chunk)

    def describe_imbalance(self, demonstrations: Sequence[Trajectory]) -> None:
        return None

    def close(self) -> None:
        close_built(self, "engine")


def check_settings(config: RunConfig, recipe: Recipe) -> None:
    """Refuse what a robot's run cannot do."""
    if config.own_agent.function is not None:
        raise ConfigError("own_agent.function: a robot environment is played by a robot policy; leave it out")
    if config.rewards.parts:
        raise ConfigError("rewards.parts: a robot's step has no text to reward; put it into the environment")
    if config.warm_start.chats is not None:
        raise ConfigError("warm_start.chats: a robot does not read chats; use warm_start.num_demos")
    if recipe.flat_sequence:
        raise ConfigError(
            f"recipe {recipe.name} learns from flat token sequences, which a robot's episodes do not have"
        )
    if recipe.needs_full_kl:
        raise ConfigError(
            "recipe.kl_estimator='full' compares distributions over a vocabulary, which a robot's actions do "
            "not have; use k1, k2 or k3"
        )
    if missing := [part for part in recipe.reward_parts if part not in PARTS]:
        raise ConfigError(
            f"recipe {recipe.name} rewards {', '.join(missing)}; a robot's step has {', '.join(PARTS)}. "
            'Set recipe.reward_parts, such as ["task"]'
        )


def check_state(name: str, spec: RobotEnvDescription, observation: Any) -> None:
    """Refuse an environment whose arrays are not those that it declares."""
    if not isinstance(observation, ArrayState):
        raise EnvError(f"{name} returned a {type(observation).__name__}; a robot environment returns arrays")
    for array, expected in spec.arrays.items():
        found = observation.arrays.get(array)
        if found is None or found.shape != tuple(expected.shape) or str(found.dtype) != expected.dtype:
            actual = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise EnvError(
                f"{name} declares {array} as {expected.dtype} {list(expected.shape)}, but returned {actual}"
            )
