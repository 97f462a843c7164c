"""Every setting of a training run: one model per table of its TOML file.

Durations are seconds, sizes are counts. Where a field may be None, its description says what
then happens. Defaults make a run that works on a laptop.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from stepwell.config.base import ObjectName, OptionalObjectName, Settings
from stepwell.config.curriculum import CurriculumConfig
from stepwell.config.engine import EngineConfig
from stepwell.config.judge import JudgeConfig
from stepwell.config.outcome import OutcomeConfig
from stepwell.config.outputs import CheckpointConfig, EvalConfig, MonitorConfig, ParityConfig, RunPoolConfig
from stepwell.config.policy import PolicyConfig
from stepwell.config.replay import ReplayConfig
from stepwell.config.training import TrainConfig, WarmStartConfig
from stepwell.config.workers import WorkersConfig
from stepwell.core.names import suggest_name
from stepwell.core.user_objects import is_import_path, name_object

PART_NAMES = ("task", "process", "format", "outcome", "grounding", "world_modeling", "repetition", "success")
"""The reward parts that steps may have by themselves."""
STRATEGY_NAMES = ("no_think", "free_think", "grounding", "world_modeling", "grounding_world_modeling")
"""The built-in prompt styles."""


class EnvConfig(Settings):
    """The environment and its options."""

    name: ObjectName = Field(
        "frozenlake",
        description="a name of `stepwell envs list`, `gymnasium:ID`, or an import path `module:Class`",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of that environment (`stepwell envs show NAME` lists them)"
    )
    tasks: str | None = Field(
        None,
        description="take tasks from this file (JSONL, JSON, Parquet, CSV), folder of a saved data set or "
        "`datasets:NAME/SPLIT`, one task's content per row; None: the environment generates its own",
    )
    held_out_share: float = Field(0.2, gt=0, lt=1, description="share of all tasks kept from training")


class AgentConfig(Settings):
    """How observations become prompts and replies become actions."""

    table_name = "agent"
    strategy: ObjectName = Field(
        "no_think",
        description="what the agent writes before its answer: `no_think`, `free_think`, `grounding`, "
        "`world_modeling`, `grounding_world_modeling`, or `module:NAME` of a prompt style of your own",
    )
    state_form: Literal["natural_language", "symbolic", "structured"] | None = Field(
        None,
        description="how observation and prediction are written; None: structured for primitive_skill, "
        "natural language for all other environments",
    )
    guide: bool = Field(
        True,
        description="give the environment's guide and an example at the start; a tiny model that knows no "
        "language learns as well without them, and faster",
    )
    repeat_format: bool = Field(
        False, description="repeat the reply format in every turn, not only at the start"
    )
    history: Literal["exact", "template"] = Field(
        "exact", description="extend the sampled ids, or render every turn again from its messages"
    )
    context: Literal["dialogue", "observation", "window", "summary"] = Field(
        "dialogue",
        description="what a prompt holds besides the present observation: the whole dialogue; a list of past "
        "actions (`observation`); the last `context_turns` turns (`window`); a summary that the policy "
        "writes every `context_turns` turns, and the turns since then (`summary`)",
    )
    context_turns: int = Field(
        4, ge=1, description="turns that a `window` holds, or between two summaries of `summary`"
    )
    max_history_chars: int = Field(
        2000,
        ge=0,
        description="longest list of past actions (the oldest turns are dropped first) or summary (its end "
        "is dropped), with context `observation` or `summary`",
    )
    report_problems: bool | None = Field(
        None, description="report which actions could not be done, and why; None: if actions are tool calls"
    )

    @field_validator("strategy")
    @classmethod
    def _check_strategy(cls, name: str) -> str:
        if name not in STRATEGY_NAMES and not is_import_path(name):
            known = ", ".join(f'"{known}"' for known in STRATEGY_NAMES)
            raise ValueError(
                f"must be one of {known}, or module:NAME, got {name!r}{suggest_name(name, STRATEGY_NAMES)}"
            )
        return name


class OwnAgentConfig(Settings):
    """Your own agent: a function that calls a chat API, served by the gateway."""

    function: OptionalObjectName = Field(
        None, description="`module:function`; None: the built-in agent plays (table `agent`)"
    )
    tasks: str | None = Field(
        None,
        description="file (JSONL, JSON, Parquet, CSV), folder of a saved data set or `datasets:NAME/SPLIT`, "
        "one task's content per row; None: the tasks of `env`",
    )
    num_processes: int = Field(2, ge=1, description="processes in which the function runs")
    concurrency: int = Field(32, ge=1, description="episodes at once in each of them")
    memory_mb: float = Field(
        4096, gt=0, description="memory limit of each of them; an episode that needs more fails (Linux)"
    )
    max_failed_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="stop when a larger share of the episodes of 5 updates fails in the agent, or all of the "
        "first update; 1: never",
    )
    learn_from_errors: bool = Field(
        False, description="learn from episodes that failed in the agent, as if the policy had failed"
    )
    keep_sampling: bool = Field(
        False, description="sample as the agent's calls ask; else as the tables `sampling` and `eval` say"
    )


class OfflineConfig(Settings):
    """Learning from stored trajectories instead of playing: which of a pool are used."""

    pool: str | None = Field(
        None, description="path or URL of the pool; None: the run plays its own episodes"
    )
    channel: Literal["train", "eval", "user"] = Field(
        "user", description="channel in which the trajectories were stored"
    )
    statuses: tuple[str, ...] | None = Field(
        None, description="statuses to learn from, such as success; None: all but infra_error"
    )
    tags: tuple[str, ...] = Field((), description="only trajectories with all of these tags")
    without_tags: tuple[str, ...] = Field(
        ("untrainable",), description="no trajectory with any of these tags"
    )
    min_reward: float | None = Field(None, description="smallest total reward")
    success: bool | None = Field(
        None,
        description="only solved trajectories, or only failed ones: by the newest judged outcome, "
        "else by the status; None: both",
    )


class SamplingConfig(Settings):
    """How actions are sampled while training."""

    temperature: float = Field(1.0, gt=0, description="temperature of training rollouts")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of probability that is sampled from; below 1 the ratio is biased, and a warning "
        "says so",
    )
    max_tokens: int = Field(128, ge=1, description="longest action in tokens")


class OwnPartConfig(Settings):
    """Your own reward part: `weight` times the result of a function for a step."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the part, in the record and in figures; by default the function's",
    )
    function: ObjectName = Field(description="`module:function` or `folder/file.py:function`")
    weight: float = Field(1.0, description="factor of what the function returns")

    @model_validator(mode="before")
    @classmethod
    def _name_by_function(cls, values: Any) -> Any:
        """A function alone is a part too; a part without a name has its function's."""
        if callable(values) or isinstance(values, str):
            values = {"function": values}
        if isinstance(values, dict) and "name" not in values and values.get("function"):
            values = {**values, "function": name_object(values["function"])}
            name = str(values["function"]).rpartition(":")[2].rpartition(".")[2]
            values["name"] = re.sub(r"\W+", "_", name.lower())
        return values


class RewardConfig(Settings):
    """Weights of the parts of a step's reward; the recipe says which parts count."""

    format: float = Field(0.5, description="reward for a reply in exactly the required form")
    process: float = Field(
        0.0, description="factor of a turn's progress towards the goal, if the environment measures it"
    )
    grounding: float = Field(0.5, description="factor of how well the described state matches the true one")
    world_modeling: float = Field(
        0.5, description="factor of how well the predicted state matches the next one"
    )
    scale: float = Field(1.0, gt=0, description="factor of every part, so that a critic's values stay small")
    parts: tuple[OwnPartConfig, ...] = Field(
        (),
        description="your own parts, each a table `[[rewards.parts]]` with `function` "
        "(`module:function` or `folder/file.py:function`), `name` (default: the function's) and `weight` "
        "(default 1); all of them count",
    )
    judge: JudgeConfig = Field(default_factory=JudgeConfig)

    @model_validator(mode="after")
    def _refuse_taken_names(self) -> RewardConfig:
        names = [*PART_NAMES, *(part.name for part in self.parts)]
        if taken := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(
                f"the name {taken[0]!r} in rewards.parts is taken; give each part a name of its own, "
                f"other than {', '.join(PART_NAMES)}"
            )
        return self


class RecipeConfig(Settings):
    """A recipe by name, and other choices; None leaves a choice as the recipe has it."""

    name: ObjectName = Field(
        "steppo", description="a name of `stepwell recipes`, or `module:NAME` of your own"
    )
    credit: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of the credit function; `function` names another one, such as `module:name`",
    )
    loss: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of the policy loss; `function` names another one, such as `module:name`",
    )
    kl_coef: float | None = Field(
        None, ge=0, description="weight of the KL term; 0: none, and no reference is kept"
    )
    kl_estimator: Literal["k1", "k2", "k3", "full"] | None = Field(
        None,
        description="how the distance from the reference is estimated from sampled tokens; full: computed "
        "over the whole vocabulary, with a pass of the reference in every pass of a language policy",
    )
    kl_in: Literal["reward", "loss"] | None = Field(None, description="where the KL term goes")
    entropy_coef: float | None = Field(None, ge=0, description="weight of the entropy bonus")
    value_coef: float | None = Field(None, ge=0, description="weight of the critic's loss")
    value_clip: float | None = Field(None, gt=0, description="clip range of the value loss")
    reward_parts: tuple[str, ...] | None = Field(None, description="what a step's reward is the sum of")
    bootstrap_truncated: bool | None = Field(None, description="use the value of the state after a cut, or 0")

    @field_validator("credit", "loss", mode="before")
    @classmethod
    def _name_function(cls, table: Any) -> Any:
        """A function given in place of the table, or in it, is named."""
        if callable(table):
            table = {"function": table}
        if isinstance(table, dict) and "function" in table:
            table = {**table, "function": name_object(table["function"])}
        return table


class RunConfig(Settings):
    """One run: everything that decides what it does."""

    name: str | None = Field(
        None, description="name of the run's folder under `folder`; None: env, recipe, seed and time"
    )
    folder: str = Field("runs", description="where run folders are made")
    seed: int = Field(0, ge=0, le=10**18, description="seed of tasks, sampling and new weights")
    num_threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; None: torch's choice")
    env: EnvConfig = Field(default_factory=EnvConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    own_agent: OwnAgentConfig = Field(default_factory=OwnAgentConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    rewards: RewardConfig = Field(default_factory=RewardConfig)
    outcome: OutcomeConfig = Field(default_factory=OutcomeConfig)
    offline: OfflineConfig = Field(default_factory=OfflineConfig)
    warm_start: WarmStartConfig = Field(default_factory=WarmStartConfig)
    recipe: RecipeConfig = Field(default_factory=RecipeConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    workers: WorkersConfig = Field(default_factory=WorkersConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    pool: RunPoolConfig = Field(default_factory=RunPoolConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    parity: ParityConfig = Field(default_factory=ParityConfig)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        parts = PurePath(name or "run").parts
        if PurePath(name or "run").is_absolute() or ".." in parts or not parts:
            raise ValueError(
                f"{name!r} is no name of a folder inside `folder`; set folder=… for another place"
            )
        return name

    @property
    def title(self) -> str:
        """What the run is about, for titles: its environment, or the user's own agent."""
        if self.own_agent.function is None:
            return self.env.name
        where, _, name = self.own_agent.function.rpartition(":")
        return f"{PurePath(where).stem if where.endswith('.py') else where}:{name}"

    @property
    def num_demos(self) -> int:
        """Demonstrations of the warm start: none where tasks are the user's own, which no oracle solves."""
        return self.warm_start.num_demos if self.own_agent.tasks is None else 0

    @property
    def start_seed(self) -> int:
        """The seed of all that comes before the first update."""
        return self.seed if self.warm_start.seed is None else self.warm_start.seed

    @property
    def has_warm_start(self) -> bool:
        """Whether there is anything to imitate before the first update."""
        return self.num_demos > 0 or self.warm_start.chats is not None

    @model_validator(mode="after")
    def _check_consistency(self) -> RunConfig:
        if self.train.minibatches > self.train.tasks_per_update * self.train.group_size:
            raise ValueError(
                f"train.minibatches ({self.train.minibatches}) exceeds the trajectories of an update "
                f"({self.train.tasks_per_update * self.train.group_size}); lower it"
            )
        phases = self.curriculum
        if (phases.enabled or phases.updates_per_phase is not None) and self.offline.pool is not None:
            raise ValueError(
                "curriculum.updates_per_phase: an offline run plays no tasks; remove one of the two"
            )
        if self.replay.enabled and self.offline.pool is not None:
            raise ValueError(
                "replay.enabled: an offline run learns from stored trajectories only; remove one of the two"
            )
        if self.outcome.is_judged and self.offline.pool is not None:
            raise ValueError(
                "outcome.judge: an offline run learns from the outcomes that its pool holds; judge them "
                "first with `stepwell orm score DIR POOL`"
            )
        if self.rewards.parts and self.own_agent.function is not None:
            raise ValueError(
                "rewards.parts: your own agent returns its whole reward; add the part to what "
                f"{self.own_agent.function} returns"
            )
        return self
