"""The parts of a run, built from its settings and wired: who plays, who samples, who learns.

    config ─► env, agent ─► policy, tokenizer ─► renderer ─► engine ─► rollout
                                └─────────────► trainer (recipe)

A robot's world has other parts between env and rollout (`robot_parts.py`), under the same names.
An agent that sees has pictures besides (`seeing.py`), which renderer, engine and policy share.
Everything that a setting can get wrong about another part is refused here, before anything runs.
"""

from __future__ import annotations

import copy
import itertools
import json
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepwell import engines, policies, training
from stepwell.agents import Agent
from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import (
    ConfigError,
    ContextLengthError,
    ImageStore,
    SamplingParams,
    Split,
    StateForm,
    Task,
    Trajectory,
)
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import env_type
from stepwell.envs.tasks import distinct_tasks
from stepwell.policies import vla
from stepwell.policies.model_resolver import ADAPTER_FILE, resolve_model
from stepwell.rendering import ImageFormat, Renderer, load_tokenizer
from stepwell.rendering.plain_tokenizer import read_plain_tokenizer
from stepwell.rewards import BatchJudge, part_names
from stepwell.rollout import BlockingSampler, LanguagePlayer, OracleSampler, Rollout, demonstrate
from stepwell.rollout.robot_player import RobotPlayer
from stepwell.runs.build import robot_components as robot_parts
from stepwell.runs.build import vision as seeing
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.build.task_files import read_tasks
from stepwell.workers.placement import check_device

if TYPE_CHECKING:
    from stepwell.pool import Pool
    from stepwell.runs.build.agent_rollout import AgentRollout

HELD_OUT_SEED = 20_261_115
"""Held-out tasks are the same in every run, whatever its seed, so that runs can be compared."""


def held_out_tasks(parts: Parts, count: int | None = None) -> list[Task]:
    """The held-out tasks of a run: the same whatever its seed."""
    return parts.tasks(Split.HELD_OUT, count or parts.config.eval.num_tasks, HELD_OUT_SEED)


@dataclass(eq=False)
class Parts:
    """What a run is made of; each part is built when it is first asked for.

    `folder` is the run's; without one (an evaluation, a plan) the pool is a temporary one. `for_plan` says
    that nothing will be sampled or learnt: the tokenizer is then read without transformers where it can be.
    """

    config: RunConfig
    folder: Path | None = None
    run_name: str = ""  # under which the pool knows the run's episodes; empty: the folder's name
    for_plan: bool = False

    def __post_init__(self) -> None:
        if not self.run_name and self.folder is not None:
            self.run_name = self.folder.name
        check_device("policy.device", self.config.policy.device)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that settings name; the user's own reward parts count in every recipe."""
        recipe = resolve_recipe(self.config.recipe)
        own = tuple(part.name for part in self.config.rewards.parts)
        return replace(recipe, reward_parts=(*(recipe.reward_parts or ("task",)), *own)) if own else recipe

    @cached_property
    def is_robot(self) -> bool:
        """Whether the world is a robot's; the settings are then checked as a robot's run."""
        if not self.has_world or not env_type(self.config.env.name).is_robot:
            return False
        robot_parts.check_settings(self.config, self.recipe)
        return True

    @cached_property
    def envs(self) -> EnvBatch:
        """As many worlds as episodes are played at once."""
        train, held_out = self.config.train, self.config.eval
        most = max(train.tasks_per_update * train.group_size, held_out.num_tasks * held_out.samples_per_task)
        size = min(most, self.config.engine.slots)
        return EnvBatch(self.config.env.name, self.config.env.options, size)

    @cached_property
    def agent(self) -> Agent:
        env = self.envs.envs[0]
        agent = Agent(env.world, self.config.agent)
        offered = part_names(agent.strategy, list(StateForm), agent.form, self.config.rewards.parts)
        rewarded = dict.fromkeys((*self.recipe.reward_parts, *self.demonstrated_parts))
        if missing := [part for part in rewarded if part not in offered]:
            raise ConfigError(
                f"recipe {self.recipe.name} rewards {', '.join(missing)}, which agent.strategy "
                f"{self.config.agent.strategy!r} does not write; choose grounding_world_modeling, or set "
                "recipe.reward_parts (of the warm start: warm_start.reward_parts)"
            )
        return agent

    @cached_property
    def model_path(self) -> Path:
        """The directory of the model; a checkpoint of adapters is one too, and names its base itself."""
        path = Path(self.config.policy.model)
        if (path / ADAPTER_FILE).is_file():
            return path
        return resolve_model(path, seed=self.config.seed, revision=self.config.policy.revision)

    @cached_property
    def base_path(self) -> Path:
        """The directory that holds the whole model: that of the base where the model is adapters."""
        if not (self.model_path / ADAPTER_FILE).is_file():
            return self.model_path
        from stepwell.policies.lora import base_of

        return Path(base_of(self.model_path))

    @property
    def critic_kind(self) -> Literal["none", "shared", "own"]:
        """The critic that settings ask for, or the one that the recipe needs."""
        wanted = self.config.policy.critic
        return "shared" if self.recipe.needs_critic and wanted == "none" else wanted

    @cached_property
    def policy(self) -> policies.CausalLMPolicy | vla.VLAPolicy:
        if self.is_robot:
            return robot_parts.robot_policy(self.config, self.envs.envs[0].world, self.critic_kind)
        changes: dict[str, Any] = {"critic": self.critic_kind, "reference": False}
        changes["model"] = str(self.model_path)
        if (self.model_path / ADAPTER_FILE).is_file():
            changes["lora"] = None
        config = self.config.policy.model_copy(update=changes)
        if self.image_format is None:
            return policies.CausalLMPolicy.from_config(config)
        seeing.check_places(self.config)
        policy = policies.VLMPolicy.from_config(config, self.pictures)
        seeing.freeze_vision(policy, config.train_vision)
        return policy

    @cached_property
    def tokenizer(self) -> Any:
        plain = read_plain_tokenizer(self.model_path) if self.for_plan else None
        return plain or load_tokenizer(self.model_path)

    @cached_property
    def image_format(self) -> ImageFormat | None:
        """How the model writes pictures into prompts; None for one that reads text."""
        return None if self.is_robot else seeing.find_image_format(self.base_path, self.tokenizer)

    @cached_property
    def pictures(self) -> ImageStore:
        """What the agent has seen, kept in the pool; none where the model does not see."""
        if self.image_format is None or self.for_plan:
            return ImageStore()
        from stepwell.pool import PoolImageStore

        return PoolImageStore(self.pool, also=self.stored_pool if self.config.offline.pool else None)

    @cached_property
    def stored_pool(self) -> Pool:
        """The pool that an offline run learns from: its steps show pictures of its own."""
        from stepwell.pool import open_pool

        assert self.config.offline.pool is not None
        return open_pool(self.config.offline.pool)

    @cached_property
    def context_limit(self) -> int:
        """Most tokens of prompt and action together: the engine's limit, or the model's if that is less."""
        content = json.loads((self.base_path / "config.json").read_text())
        own = int(content.get("text_config", content).get("max_position_embeddings") or 2**31)
        wanted = self.config.engine.max_length
        return own if wanted is None else min(own, wanted)

    @cached_property
    def renderer(self) -> Renderer:
        limit = self.context_limit
        return Renderer(
            self.tokenizer,
            self.config.agent.history,
            context_length=limit,
            room=min(self.config.sampling.max_tokens, limit - 1),
            image_format=self.image_format,
            pictures=self.pictures,
        )

    @cached_property
    def engine(self) -> engines.EmbeddedEngine | engines.ArrayEngine:
        """Runs a copy of the policy's model, adapters merged into it."""
        if isinstance(self.policy, vla.VLAPolicy):
            return engines.ArrayEngine(self.policy.model, self.config.engine)
        model = self.policy.model
        if self.policy.adapters is not None:
            model = copy.deepcopy(self.policy.adapters).merge_and_unload()
        return engines.EmbeddedEngine(
            model,
            self.tokenizer,
            self.config.engine,
            copy=self.policy.adapters is None,
            image_format=self.image_format,
            pictures=self.pictures,
        )

    @cached_property
    def pool(self) -> Pool:
        """Where trajectories are kept: the pool that settings name, or the run's own."""
        from stepwell.pool import open_pool

        config = self.config.pool
        if config.url is not None:
            return open_pool(config.url, durable=config.durable, blobs=config.blobs, require_write=True)
        if self.folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="stepwell-")
        return open_pool(
            (self.folder or Path(self._temporary.name)) / "pool" / "pool.db", durable=config.durable
        )

    @cached_property
    def rollout(self) -> Rollout | AgentRollout:
        """Who plays: the built-in agent, or one of the user's own through the gateway."""
        if self.config.own_agent.function is None:
            return self.rollout_with(self.engine)
        from stepwell.runs.build.agent_rollout import AgentRollout

        return AgentRollout.start(
            self.config, self.engine, self.renderer, self.pool, self.folder, self.run_name
        )

    def rollout_with(self, sampler: BlockingSampler) -> Rollout:
        """The episodes of this run with another sampler."""
        return Rollout(self.envs, self.player, sampler)

    @cached_property
    def batch_judge(self) -> BatchJudge | None:
        """Who goes over an update's trajectories, where one step alone cannot be judged."""
        judge = self.config.rewards.judge
        if self.is_robot or not self.has_world or (judge.kind != "endpoint" and not judge.repetition_penalty):
            return None
        return BatchJudge(
            self.agent,
            self.config.rewards,
            parts=self.recipe.reward_parts or ("task",),
            optional_parts=self.recipe.optional_reward_parts,
        )

    @cached_property
    def player(self) -> LanguagePlayer | RobotPlayer:
        """What an episode asks, answers and records."""
        if self.is_robot:
            return robot_parts.robot_player(self.config, self.recipe)
        return self._language_player(self.recipe.reward_parts)

    def _language_player(self, reward_parts: tuple[str, ...]) -> LanguagePlayer:
        return LanguagePlayer(
            self.agent,
            self.renderer,
            parts=reward_parts or ("task",),
            optional_parts=self.recipe.optional_reward_parts,
            weights=self.config.rewards,
            reward_scale=self.config.rewards.scale,
            judged_later=self.batch_judge is not None,
        )

    @cached_property
    def trainer(self) -> training.Trainer:
        return training.Trainer(
            self.policy,
            self.recipe,
            self.config.train,
            horizon=self._horizon,
            value_clip=self.config.recipe.value_clip,
            devices=self.config.groups.trainers.devices,
        )

    @property
    def _horizon(self) -> int | None:
        """Most steps of an episode, where the world says so."""
        if isinstance(self.policy, vla.VLAPolicy):
            return -(-self.envs.envs[0].world.max_actions // self.policy.model.shape.config.chunk)
        return self.agent.world.max_turns if self.has_world else None

    @property
    def has_world(self) -> bool:
        """Whether tasks come from a world of ours; an agent of the user's own may bring its own."""
        return self.config.own_agent.tasks is None

    def prepare(self) -> None:
        """Build everything now, and refuse what could only fail later."""
        _ = self.trainer, self.rollout
        if self.has_world:
            self.check_prompt()

    def check_prompt(self) -> None:
        """Refuse a world whose first prompt leaves no room for an action, or whose arrays are others."""
        (task,) = self.tasks(Split.TRAIN, 1, self.config.seed)
        for _ in range(self.config.train.max_env_retries + 1):
            (turn,) = self.envs.reset([task])
            if turn.error is None:
                break
        else:
            assert turn.error is not None
            raise turn.error
        if self.is_robot:
            robot_parts.check_state(self.config.env.name, self.envs.envs[0].world, turn.observation)
            return
        seeing.check_observation(self.config, turn.observation, self.image_format)
        try:
            self.player.open_conversation(turn.observation)
        except ContextLengthError as error:
            raise ContextLengthError(
                f"{error}. It is the first prompt of {self.config.env.name}; the limit is the smaller of "
                "the model's context and engine.max_length, the room sampling.max_tokens"
            ) from error

    def params(self, temperature: float) -> SamplingParams:
        """How an action is asked for."""
        sampling = self.config.sampling
        if self.is_robot:
            return SamplingParams(temperature=temperature)
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=temperature,
            top_p=sampling.top_p if temperature > 0 else 1.0,
            stop_ids=self.renderer.end_ids,
        )

    def tasks(self, split: Split, count: int, seed: int) -> list[Task]:
        """Distinct tasks of one split; all there are if the world holds fewer."""
        env, own = self.config.env, self.config.own_agent.tasks
        source, setting = (own, "own_agent.tasks") if own is not None else (env.tasks, "env.tasks")
        if source is None:
            every = distinct_tasks(env.name, env.options, split, seed, env.held_out_share)
            tasks = list(itertools.islice(every, count))
        else:
            name = self.envs.envs[0].name if own is None else None
            tasks = read_tasks(source, split, seed, env.held_out_share, env=name, setting=setting)[:count]
        if not tasks and source is not None:
            raise ConfigError(f"{setting}: {source} has no {split.value} task; add some, or `split` fields")
        if not tasks:
            raise ConfigError(
                f"{env.name} with these env.options has no {split.value} task: change "
                f"env.held_out_share ({env.held_out_share}) or allow more variety"
            )
        return tasks

    def demonstrations(self, num_demos: int, noise: float, seed: int, times: int = 1) -> list[Trajectory]:
        """Episodes of the oracle on training tasks, each played so many times, and more where there are
        fewer tasks than demonstrations."""
        tasks = self.tasks(Split.TRAIN, num_demos, seed)
        if not self.is_robot:
            tasks = list(itertools.islice(itertools.cycle(tasks), num_demos))
        tasks = tasks * times
        if self.is_robot:
            chunk = self.policy.model.shape.config.chunk
            return robot_parts.robot_demonstrations(self.envs, self.player, tasks, chunk, noise, seed)
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        sampler = OracleSampler(self.envs.envs, self.agent, encode, self.renderer.end_ids[0], noise=noise)
        player = self._language_player(self.demonstrated_parts)
        return demonstrate(Rollout(self.envs, player, sampler), tasks, seed)

    @property
    def demonstrated_parts(self) -> tuple[str, ...]:
        """What the rewards of demonstrations are the sum of."""
        asked = self.config.warm_start.reward_parts
        return self.recipe.reward_parts if asked is None else asked

    def close(self) -> None:
        """Stop the engine and the worlds, if they were started."""
        for name in ("rollout", "engine", "trainer", "envs", "pool", "stored_pool"):
            if name in self.__dict__ and hasattr(self.__dict__[name], "close"):
                self.__dict__[name].close()
