"""Settings of what changes weights: the optimizer, the warm start, and the updates of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.config.guard import GuardConfig


class OptimizerConfig(Settings):
    """AdamW, or Muon for the hidden matrices with AdamW for the rest."""

    kind: Literal["adamw", "muon"] = Field("adamw", description="what updates the hidden matrices")
    learning_rate: float = Field(3e-4, gt=0, description="learning rate of AdamW")
    muon_learning_rate: float = Field(
        3e-3, gt=0, description="learning rate of Muon, scaled to AdamW's size of update"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="each step shrinks weights by this share times the learning rate"
    )
    beta2: float = Field(0.99, gt=0, lt=1, description="AdamW's memory of squared gradients")
    state: Literal["full", "8bit", "offload"] = Field(
        "full",
        description="how AdamW's moments are kept: in full on the device, in 8 bits, or in the host's memory "
        "(Muon's momentum stays as it is)",
    )
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the gradient")


class WarmStartConfig(Settings):
    """Supervised start from chats, then from the oracle's demonstrations; none by default."""

    chats: str | None = Field(
        None,
        description="learn the assistant's turns of this file first: one chat per row, "
        '`{"messages": [...], "tools": [...]}` in OpenAI\'s form; JSONL, JSON, Parquet or a data set',
    )
    num_demos: int = Field(
        0,
        ge=0,
        description="demonstrated tasks; an environment with fewer training tasks has each demonstrated "
        "several times, with other mistakes every time (noise)",
    )
    noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of demonstrated actions that are random; a robot's: deviation added to them",
    )
    demos_per_task: int = Field(
        1, ge=1, description="demonstrations of each task, with other mistakes every time (noise)"
    )
    epochs: int = Field(1, ge=1, description="passes over the demonstrations")
    batch_size: int = Field(64, ge=1, description="demonstrations per update")
    max_updates: int | None = Field(
        None, ge=1, description="stop after this many updates; None: after the epochs"
    )
    stop_at: float | None = Field(
        None, gt=0, le=1, description="stop once this share of training tasks is solved, decoded as in eval"
    )
    stop_at_format: float | None = Field(
        None,
        gt=0,
        le=1,
        description="do not stop before this share of replies has the required form; with `stop_at`, both "
        "must be reached",
    )
    stop_at_grounding: float | None = Field(
        None,
        gt=0,
        le=1,
        description="do not stop before descriptions of what is seen are this right on average, as the "
        "judge of rewards scores them; for strategies that describe it",
    )
    check_every: int = Field(4, ge=1, description="updates between checks of the goals above")
    value_coef: float = Field(
        0.5,
        ge=0,
        description="weight of teaching the critic what the recipe reads; 0: not taught, and a critic of its "
        "own begins with the warm actor's backbone",
    )
    reward_parts: tuple[str, ...] | None = Field(
        None, description="reward parts that the critic is taught; None: recipe.reward_parts"
    )
    cache: str | None = Field(None, description="folder in which runs with equal settings share it")
    seed: int | None = Field(
        None,
        ge=0,
        description="seed of the untrained model, the demonstrations and their order, so that runs of all "
        "seeds share one start; None: the run's",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate changes over all updates; but for constant to 0"
    )
    optimizer: OptimizerConfig = Field(default_factory=lambda: OptimizerConfig(learning_rate=1e-3))

    @property
    def is_wanted(self) -> bool:
        """Whether there is a warm start at all."""
        return self.num_demos > 0 or self.chats is not None


class TrainConfig(Settings):
    """The loop: how much is sampled, how it is learnt from, when it ends."""

    num_updates: int = Field(100, ge=0, description="number of rollouts and updates")
    tasks_per_update: int = Field(32, ge=1, description="distinct tasks sampled for one update")
    group_size: int = Field(4, ge=1, description="trajectories per task")
    num_tasks: int = Field(4096, ge=1, description="distinct training tasks, played in shuffled order")
    update_epochs: int = Field(1, ge=1, description="passes over each rollout")
    minibatches: int = Field(1, ge=1, description="optimizer steps per pass")
    token_budget: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        description="tokens of one microbatch; auto: as many as free memory holds, fewer after running out "
        "of it; None: the whole minibatch at once",
    )
    micro_batch: int | None = Field(
        None, ge=1, description="steps of one microbatch of a robot policy; None: the whole minibatch at once"
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    sharding: Literal["none", "full"] = Field(
        "none",
        description="full: every trainer device keeps a part of weights, gradients and optimizer states, and "
        "gathers a layer when it runs (FSDP2); none: whole copies",
    )
    critic_learning_rate: float | None = Field(
        None, gt=0, description="learning rate of critics; none: as the actor's"
    )
    critic_only_updates: int = Field(
        0,
        ge=0,
        description="the first updates teach the critic alone, on rollouts of the policy as it started; "
        "needs policy.critic own; without effect in recipes that have no critic. With the next update the "
        "schedule of the learning rate begins again, warm-up included",
    )
    critic_epochs: int = Field(
        0,
        ge=0,
        description="passes over each rollout that teach the critic alone, before the policy reads its "
        "values; needs policy.critic own",
    )
    measure_credit: bool = Field(
        False,
        description="report the size of advantages by step, and what the critic explains by step and by site",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate changes over num_updates"
    )
    warmup_updates: int = Field(0, ge=0, description="updates over which the learning rate rises from 0")
    final_learning_rate: float = Field(
        0.1, ge=0, le=1, description="learning rate at the end of the schedule, as a share of the highest"
    )
    guard: GuardConfig = Field(default_factory=GuardConfig)
    max_grad_norm: float = Field(
        1e4, gt=0, description="norm of the gradient above which an update counts as exploding"
    )
    max_env_steps: int | None = Field(
        None, ge=1, description="end training after this many actions in the environment"
    )
    max_seconds: float | None = Field(None, gt=0, description="end training after this time")
    max_silent_updates: int = Field(
        20, ge=0, description="end training after this many updates in a row with almost no action; 0: never"
    )
    max_env_retries: int = Field(2, ge=0, description="retries of an episode after a failure of the system")
    episode_timeout_s: float | None = Field(
        None, gt=0, description="time limit of an episode, after which it is truncated"
    )
