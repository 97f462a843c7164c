"""The components of a language agent's run.

    env, agent ─► policy, tokenizer ─► renderer ─► engine ─► rollout

An agent that sees also has an image format and an image store (`vision.py`), which renderer, engine and
policy share. A user's own agent (`own_agent.function`) plays through the gateway instead of the built-in one.
"""

from __future__ import annotations

import copy
import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell import engines, policies
from stepwell.agents import Agent
from stepwell.config.engine import SGLANG_RESERVED_TOKENS
from stepwell.config.run import RunConfig
from stepwell.core import (
    ConfigError,
    ContextLengthError,
    ImageStore,
    Observation,
    SamplingParams,
    StateForm,
    Task,
    Trajectory,
)
from stepwell.policies.model_resolver import ADAPTER_FILE, resolve_model
from stepwell.rendering import ImageFormat, Renderer, load_tokenizer
from stepwell.rendering.plain_tokenizer import read_plain_tokenizer
from stepwell.rewards import BatchJudge, list_part_names
from stepwell.rollout import LanguagePlayer, OracleSampler, Rollout, demonstrate
from stepwell.runs.build import vision
from stepwell.runs.build.resources import RunResources, close_built
from stepwell.runs.build.reward_balance import describe_imbalance

if TYPE_CHECKING:
    from stepwell.pool import PoolImageStore
    from stepwell.runs.build.agent_rollout import AgentRollout


@dataclass(eq=False)
class LanguageBackend:
    """The components of a run in which a language model acts (`backend.py` says what each is)."""

    resources: RunResources
    is_robot: bool = False

    @property
    def config(self) -> RunConfig:
        return self.resources.config

    @property
    def default_inflight(self) -> int:
        """The engine lets new requests join those under way; servers have queues of their own."""
        return 4 if self.config.engine.backend == "embedded" else 64

    # --- model ----------------------------------------------------------------------------

    @cached_property
    def model_path(self) -> Path:
        """The directory of the model. A checkpoint of adapters is one too, and names its base itself."""
        path = Path(self.config.policy.model)
        if (path / ADAPTER_FILE).is_file():
            return path
        find = self.resources.find_model or resolve_model
        return find(path, seed=self.config.start_seed, revision=self.config.policy.revision)

    @cached_property
    def base_path(self) -> Path:
        """The directory of the whole model: the base model's if `model_path` holds adapters."""
        if not (self.model_path / ADAPTER_FILE).is_file():
            return self.model_path
        from stepwell.policies.lora import read_base_model

        return Path(read_base_model(self.model_path))

    @cached_property
    def policy(self) -> policies.CausalLMPolicy:
        changes: dict[str, Any] = {"critic": self.resources.critic_kind, "reference": False}
        changes["model"] = str(self.model_path)
        if (self.model_path / ADAPTER_FILE).is_file():
            changes["lora"] = None
        config = self.config.policy.model_copy(update=changes)
        if self.image_format is None:
            return policies.CausalLMPolicy.from_config(config)
        vision.check_devices(self.config)
        policy = policies.VLMPolicy.from_config(config, self.images)
        vision.freeze_vision(policy, config.train_vision)
        return policy

    @cached_property
    def tokenizer(self) -> Any:
        plain = read_plain_tokenizer(self.model_path) if self.resources.for_plan else None
        return plain or load_tokenizer(self.model_path)

    @cached_property
    def image_format(self) -> ImageFormat | None:
        """How the model writes images into prompts; None for a text model."""
        found = vision.find_image_format(self.base_path, self.tokenizer)
        if found is not None:
            vision.check_engine(self.config, found)
        return found

    @cached_property
    def image_store(self) -> PoolImageStore | None:
        """In the pool; an offline run also reads those of the pool that it learns from."""
        if self.image_format is None or self.resources.for_plan:
            return None
        from stepwell.pool import PoolImageStore

        resources = self.resources
        return PoolImageStore(
            resources.pool, also=resources.stored_pool if self.config.offline.pool else None
        )

    @property
    def images(self) -> ImageStore:
        """The image store, or an empty one for a text model or a plan."""
        return self._no_images if self.image_store is None else self.image_store

    @cached_property
    def _no_images(self) -> ImageStore:
        return ImageStore()

    @cached_property
    def context_limit(self) -> int:
        """The most tokens of prompt and action: the engine's limit, or the model's if that is smaller."""
        content = json.loads((self.base_path / "config.json").read_text())
        own = int(content.get("text_config", content).get("max_position_embeddings") or 2**31)
        wanted = self.config.engine.max_length
        if wanted is None and self.config.engine.backend == "sglang":
            return own - SGLANG_RESERVED_TOKENS
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
            image_store=self.images,
        )

    @cached_property
    def engine(self) -> engines.EmbeddedEngine | engines.ServedEngine:
        """Runs a copy of the policy's model with adapters merged into it, or gives it to servers."""
        model = self.policy.model
        if self.policy.adapters is not None:
            model = copy.deepcopy(self.policy.adapters).merge_and_unload()
        if self.config.engine.backend != "embedded":
            return self._open_servers(model)
        return engines.EmbeddedEngine(
            model,
            self.tokenizer,
            self.config.engine,
            copy=self.policy.adapters is None,
            image_format=self.image_format,
            image_store=self.images,
        )

    def _open_servers(self, model: Any) -> engines.ServedEngine:
        folder = self.resources.folder or Path(tempfile.mkdtemp(prefix="stepwell-"))
        temperatures = (self.config.sampling.temperature, self.config.eval.temperature)
        return engines.ServedEngine(
            model,
            self.tokenizer,
            self.config.engine,
            folder=folder / "served_weights",
            source=self.base_path,
            context_length=self.context_limit,
            params=[self.sampling_params(temperature) for temperature in temperatures],
            copy=self.policy.adapters is None,
            image_format=self.image_format,
            image_store=self.images,
        )

    # --- agent and episodes ---------------------------------------------------------------

    @cached_property
    def agent(self) -> Agent:
        """The built-in agent; refused where a rewarded part is not in what it writes."""
        recipe = self.resources.recipe
        env = self.resources.envs.envs[0]
        agent = Agent(env.description, self.config.agent)
        offered = {
            "process",  # of the environment, below
            *list_part_names(agent.strategy, list(StateForm), agent.form, self.config.rewards.parts),
        }
        rewarded = dict.fromkeys((*recipe.reward_parts, *self.resources.demonstrated_parts))
        if "process" in rewarded and not env.has_process:
            raise ConfigError(
                f"recipe {recipe.name} rewards process, but {env.description.name} measures no progress; "
                "take it out of recipe.reward_parts and warm_start.reward_parts, or measure it there"
            )
        if missing := [part for part in rewarded if part not in offered]:
            raise ConfigError(
                f"recipe {recipe.name} rewards {', '.join(missing)}, which agent.strategy "
                f"{self.config.agent.strategy!r} does not write; choose grounding_world_modeling, or set "
                "recipe.reward_parts (of the warm start: warm_start.reward_parts)"
            )
        return agent

    @cached_property
    def batch_judge(self) -> BatchJudge | None:
        judge, recipe = self.config.rewards.judge, self.resources.recipe
        if not self.resources.has_env or (judge.kind != "endpoint" and not judge.repetition_penalty):
            return None
        return BatchJudge(
            self.agent,
            self.config.rewards,
            parts=recipe.reward_parts or ("task",),
            optional_parts=recipe.optional_reward_parts,
        )

    @cached_property
    def player(self) -> LanguagePlayer:
        return self._make_player(self.resources.recipe.reward_parts)

    def _make_player(self, reward_parts: tuple[str, ...]) -> LanguagePlayer:
        return LanguagePlayer(
            self.agent,
            self.renderer,
            parts=reward_parts or ("task",),
            optional_parts=self.resources.recipe.optional_reward_parts,
            weights=self.config.rewards,
            reward_scale=self.config.rewards.scale,
            judged_later=self.batch_judge is not None,
        )

    @property
    def horizon(self) -> int | None:
        return self.agent.description.max_turns if self.resources.has_env else None

    @property
    def state_form(self) -> str | None:
        return self.agent.form.value if self.resources.has_env else None

    def sampling_params(self, temperature: float) -> SamplingParams:
        sampling = self.config.sampling
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=temperature,
            top_p=sampling.top_p if temperature > 0 else 1.0,
            stop_ids=self.renderer.end_ids,
        )

    def make_rollout(self) -> Rollout | AgentRollout:
        """With the built-in agent, or with the user's own through the gateway."""
        resources = self.resources
        if self.config.own_agent.function is None:
            return Rollout(resources.envs, self.player, self.engine)
        from stepwell.runs.build.agent_rollout import AgentRollout

        return AgentRollout.start(
            self.config, self.engine, self.renderer, resources.pool, resources.folder, resources.run_name
        )

    def check_observation(self, observation: Any) -> None:
        """Refuse images for a text model, and a first prompt that leaves no room for an action."""
        assert isinstance(observation, Observation)
        vision.check_observation(self.config, observation, self.image_format)
        try:
            self.player.open_conversation(observation)
        except ContextLengthError as error:
            raise ContextLengthError(
                f"{error}. It is the first prompt of {self.config.env.name}; the limit is the smaller of "
                "the model's context and engine.max_length, the room sampling.max_tokens"
            ) from error

    # --- demonstrations -------------------------------------------------------------------

    def repeat_tasks(self, tasks: Sequence[Task], num_demos: int) -> list[Task]:
        """Tasks in turn, where there are fewer than demonstrations."""
        return list(itertools.islice(itertools.cycle(tasks), num_demos))

    def demonstrate(self, tasks: list[Task], noise: float, seed: int) -> list[Trajectory]:
        """The oracle's episodes; `noise` is the share of its actions that are random."""
        envs = self.resources.envs
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        sampler = OracleSampler(envs, self.agent, encode, self.renderer.end_ids[0], noise=noise)
        player = self._make_player(self.resources.demonstrated_parts)
        return demonstrate(Rollout(envs, player, sampler), tasks, seed)

    def describe_imbalance(self, demonstrations: Sequence[Trajectory]) -> str | None:
        max_turns, rewarded = self.agent.description.max_turns, self.resources.demonstrated_parts
        return describe_imbalance(demonstrations, self.config.rewards, rewarded, max_turns)

    def close(self) -> None:
        close_built(self, "engine")
