"""The trainer: trajectories in, one update of the weights out.

    trajectories ─► split (whole groups) ─► Minibatch ─► packed ─► Objective ─► backward ─► step
                                      credit of the whole batch ──┘  └── update_epochs passes ──┘

Values, advantages and whitening are those of the update's start, computed on the whole batch: with several
minibatches or microbatches one pass without gradients comes first, where credit needs outputs (a critic, a KL
in the reward), or where later minibatches hold samples of older versions, whose proximal logprobs are those
of the start. Then every microbatch runs once, unless the loss couples more than a microbatch holds.

It knows no algorithm by name; the recipe defines what to compute. A gradient that is not finite or above a
limit changes no weight: a `DivergenceError` reports the figures.

With several `devices`, or with `train.sharding = "full"`, each device has a rank, a process that runs its
share of every minibatch and keeps its part of weights and optimizer (`ranks.py`). Those here are then copies
on the host. An update starts the ranks; a failure (see `on_dead_rank`) or a loaded state ends them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stepwell.algos.credit.result import CreditResult
from stepwell.algos.recipes import Recipe
from stepwell.config.training import TrainConfig
from stepwell.config.workers import OnDeadRank
from stepwell.core import InputError, LogprobGaps, Step, Trajectory, select_trainable
from stepwell.core.logprob_gaps import MeasureErrors
from stepwell.packing import Outputs, backward, check_finite, evaluate
from stepwell.pool.credit_records import CreditRecord
from stepwell.training.batch import TrajectoryMinibatch, oom_as_config_error
from stepwell.training.batch_split import split_trajectories
from stepwell.training.credit_collection import collect_credit
from stepwell.training.critic_clock import measure_critic_time
from stepwell.training.critics import (
    check_frozen_start,
    prepare_critics,
    read_instruction_values,
    teach_critic,
    teach_instructions,
)
from stepwell.training.divergence import ADVICE, judge_gradient, make_divergence_error
from stepwell.training.flat_sequence import flatten_trajectories
from stepwell.training.loss_metrics import average_metrics, was_left_out
from stepwell.training.memory_budget import TokenBudget
from stepwell.training.objective import Objective
from stepwell.training.optimizer import Optimizer, explain_nan, rate_share
from stepwell.training.policy import Policy
from stepwell.training.position_check import find_position_fault
from stepwell.training.rank_group import RankGroup
from stepwell.training.rank_launch import ChildLauncher, RankLauncher
from stepwell.training.rank_optimizer import RankOptimizer
from stepwell.training.ranked_policy import refuse_full_kl
from stepwell.training.ranks import TIMEOUT_S
from stepwell.training.rounding_error import measure_errors
from stepwell.training.sharded_files import load_shards
from stepwell.training.update_credit import compute_update_credit

Result = TypeVar("Result")
CheckParity = Callable[[LogprobGaps, MeasureErrors], None]
CheckPositions = Callable[[str], None]
KeepCredit = Callable[[list[CreditRecord]], None]


class Trainer:
    """Updates a policy by a recipe.

    `horizon` is the environment's turn limit. With a recipe that uses a reference, call `freeze_reference`
    when the policy has its weights. Several `devices` (or a `launcher`) are ranks, each of which may take
    `rank_timeout_s` for its share; `on_dead_rank` says what follows the death of one.
    """

    def __init__(
        self,
        policy: Policy,
        recipe: Recipe,
        config: TrainConfig,
        *,
        horizon: int | None = None,
        value_clip: float | None = None,
        devices: Sequence[str] = (),
        launcher: RankLauncher | None = None,
        on_dead_rank: OnDeadRank = "stop",
        rank_timeout_s: float = TIMEOUT_S,
    ) -> None:
        prepare_critics(policy, recipe)
        check_frozen_start(policy, recipe, config)
        has_ranks = launcher is not None or len(devices) > 1 or config.sharding == "full"
        if has_ranks:
            refuse_full_kl(recipe)
        self.policy, self.recipe, self.config = policy, recipe, config
        self.horizon, self.value_clip = horizon, value_clip
        self.devices, self.num_done = tuple(devices), 0
        self._replay_teaches_critic = True
        self._keep_credit: KeepCredit | None = None
        self._check_positions: CheckPositions | None = None
        self.rate_factor = 1.0
        """Factor of all learning rates besides the schedule; a rolled back run lowers it."""
        self._budget = TokenBudget(config.token_budget, policy)
        self.optimizer = Optimizer(
            policy.named_parameters(), config.optimizer, critic_rate=config.critic_learning_rate
        )
        self.ranks: RankGroup | None = None
        if has_ranks:
            self.ranks = RankGroup(
                policy,
                self.optimizer,
                config,
                launcher or ChildLauncher(devices or [str(policy.device)]),
                on_dead_rank=on_dead_rank,
                timeout_s=rank_timeout_s,
            )
        self._evaluator: Any = policy  # or a `RankedPolicy` around it
        self._stepper: Optimizer | RankOptimizer = self.optimizer

    def freeze_reference(self, *, copies_adapters: bool = False) -> None:
        """Store the current weights as the reference, if the recipe uses one.

        With adapters the reference is the base model, unless they are to be copied; the base is shared.
        """
        if self.ranks is not None:
            self.ranks.release()
        if self.recipe.needs_reference and (self.policy.adapters is None or copies_adapters):
            base = [] if self.policy.adapters is None else self.policy.model.parameters()
            shared = {id(parameter): parameter for parameter in base if not parameter.requires_grad}
            self.policy.reference = copy.deepcopy(self.policy.model, shared).requires_grad_(False)

    def update(
        self,
        trajectories: Sequence[Trajectory],
        *,
        check_parity: CheckParity | None = None,
        check_positions: CheckPositions | None = None,
        version: int | None = None,
        trained_steps: Mapping[str, Sequence[bool]] | None = None,
        replay_teaches_critic: bool = True,
        keep_credit: KeepCredit | None = None,
    ) -> dict[str, float]:
        """Learn from trajectories; returns the metrics of the update.

        `check_parity` is called before the policy changes, with the gaps of its logprobs to the engine's, and
        a function that compares both with float32. `check_positions` gets a description if the engine read a
        step at other positions. Both may raise. `version` is that of the current weights; older samples are
        not compared, and learnt from with the truncated ratio. `trained_steps` names the replayed steps that
        the policy learns from, with `replay_teaches_critic` the critic too. `keep_credit` gets all credit.
        """
        self._replay_teaches_critic, self._keep_credit = replay_teaches_critic, keep_credit
        self._check_positions, num_done = check_positions, self.num_done

        def run() -> dict[str, float]:
            self.num_done = num_done  # the ranks may have lost what it came to, and it runs again
            return self._run_update(trajectories, check_parity, version, trained_steps or {})

        return run() if self.ranks is None else self.ranks.run_update(run)

    def close(self) -> None:
        """End the ranks; what only they know is lost unless it was collected (`state_dict`)."""
        if self.ranks is not None:
            self.ranks.close()

    def _count_critic_updates(self) -> int:
        return self.config.critic_only_updates if self.recipe.needs_critic else 0

    @property
    def rank_pids(self) -> list[int]:
        return [] if self.ranks is None else self.ranks.pids

    def _run_update(
        self,
        trajectories: Sequence[Trajectory],
        check_parity: CheckParity | None,
        version: int | None,
        trained_steps: Mapping[str, Sequence[bool]],
    ) -> dict[str, float]:
        kept, counts = select_trainable(trajectories)
        if not kept:
            ends = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
            raise InputError(f"nothing to train on: no trajectory has a step to learn from ({ends})")
        if self.recipe.flat_sequence:
            kept = flatten_trajectories(kept, self.policy)
        minibatches = self._build_minibatches(kept, trained_steps)
        share = self.rate_factor * rate_share(
            self.num_done,
            num_updates=self.config.num_updates,
            schedule=self.config.schedule,
            warmup=self.config.warmup_updates,
            final=self.config.final_learning_rate,
            start=self._count_critic_updates(),
        )
        self._stepper.set_rate(share)
        if self._check_positions is not None and (fault := find_position_fault(self.policy, minibatches)):
            self._check_positions(fault)
        place = f"update {self.num_done + 1}"
        with explain_nan(place, ADVICE), oom_as_config_error(place, minibatches):
            objectives = [self._build_objective(minibatch, version) for minibatch in minibatches]
            seen: list[dict[str, Tensor]] = []
            is_cut = len(objectives) > 1 or self._runs_in_parts(objectives[0])
            steps = [step for minibatch in minibatches for step in minibatch.steps]
            with measure_critic_time(self.policy.critic, self.policy.device) as clock:
                before = self._teach_first(objectives)
                start = (self._compute_credit(objectives) if is_cut or before else {}) | before
                planned = objectives * self.config.update_epochs
                for objective in planned:
                    taken = self._take_step(objective, steps, is_first=not seen, check_parity=check_parity)
                    seen.append(taken)
                    if was_left_out(seen[-1]):
                        break
        if not self._stepper.are_weights_finite():
            raise make_divergence_error(
                self.num_done + 1, "the weights are no longer finite; they were neither published nor saved"
            )
        self.num_done += 1
        if self._keep_credit is not None:
            self._keep_credit(collect_credit(self.num_done, objectives))
        metrics = average_metrics([*seen, start]) | clock.read_metrics()
        if self.config.guard.max_kl is not None:
            metrics["guard/left_out"] = float(len(planned) - sum(not was_left_out(each) for each in seen))
            metrics["guard/last_kl"] = float(seen[-1].get("update_kl", 0.0))
        metrics["learning_rate"] = share * self.config.optimizer.learning_rate
        metrics["packed_tokens"] = float(sum(m.packed.num_tokens for m in minibatches))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and counter; the policy holds the weights."""
        if self.ranks is not None:
            self.ranks.collect_state()
        return self.read_counters() | {"optimizer": self.optimizer.state_dict()}

    def read_counters(self) -> dict[str, Any]:
        """How far training is; a checkpoint in shards holds the optimizer apart."""
        factor = {} if self.rate_factor == 1.0 else {"rate_factor": self.rate_factor}
        return {"num_done": self.num_done} | factor

    def load_state_dict(self, state: dict[str, Any], shards: Path | None = None) -> None:
        """Continue from a `state_dict`, or from `read_counters` and the optimizer states in `shards`."""
        if self.ranks is not None:
            self.ranks.restore_shards(shards)
        if shards is None:
            self.optimizer.load_state_dict(state["optimizer"])
        elif self.ranks is None:
            weights = dict(self.policy.named_parameters())
            self.optimizer.load_named_state(load_shards(shards, weights))
        self.num_done = int(state["num_done"])
        self.rate_factor = float(state.get("rate_factor", 1.0))

    def _build_minibatches(
        self, trajectories: Sequence[Trajectory], trained_steps: Mapping[str, Sequence[bool]]
    ) -> list[TrajectoryMinibatch]:
        """The data of each optimizer step, distributed over the ranks if there are some."""
        rng = np.random.default_rng(self.num_done)  # the same after a resume
        if self.ranks is not None:
            self._budget.limit_tokens(self.ranks.start().token_budget)
        minibatches = [
            TrajectoryMinibatch(
                part,
                self.policy.device,
                self._budget.read_tokens(part),
                self.recipe.bootstrap_truncated,
                self.config.micro_batch,
                trained_steps=trained_steps,
                replay_teaches_critic=self._replay_teaches_critic,
                keeps_trajectories=self.recipe.loss_traits.couples == "trajectory",
            )
            for part in split_trajectories(trajectories, self.config.minibatches, rng)
        ]
        if self.ranks is not None:
            minibatches, self._evaluator, self._stepper = self.ranks.take_batches(minibatches)
        return minibatches

    def _build_objective(self, minibatch: TrajectoryMinibatch, version: int | None) -> Objective:
        ref = instructions = None
        if self.recipe.needs_reference_logprobs:
            ref = torch.cat(
                self._fit_memory(minibatch, lambda: self._evaluator.reference_logprobs(minibatch.packed))
            )
        if self.recipe.needs_instruction_critic:
            instructions = read_instruction_values(self._evaluator, minibatch)
        return Objective(
            self.recipe,
            minibatch,
            ref,
            self.horizon,
            self.value_clip,
            version,
            instruction_values=instructions,
            in_detail=self.config.measure_credit,
            trains_policy=self.num_done >= self._count_critic_updates(),
        )

    def _teach_first(self, objectives: Sequence[Objective]) -> dict[str, Tensor]:
        """Teach the critic before the policy reads its values; returns what it explained till then."""
        if not (self.config.critic_epochs and self.recipe.needs_critic and objectives[0].trains_policy):
            return {}
        metrics = self._compute_credit(lessons := [replace(each, _parts={}) for each in objectives])
        teach_critic(self._evaluator, self._stepper, lessons, self.config)
        return metrics

    def _runs_in_parts(self, objective: Objective) -> bool:
        """Whether credit that is known before allows to run the microbatches of a minibatch once."""
        packed = objective.minibatch.packed
        return objective.couples != "batch" and len(self._evaluator.prepare_batch(packed).microbatches) > 1

    def _compute_credit(self, objectives: Sequence[Objective]) -> dict[str, Tensor]:
        """Give every minibatch its part of the whole batch's credit, from the weights as they are now."""
        timelines = []
        for place, objective in enumerate(objectives):
            minibatch, version, needs = objective.minibatch, objective.version, objective.needs_at_start
            is_later = place > 0  # the first minibatch's first pass is the start of the update
            is_stale = is_later and version is not None and bool(minibatch.is_behind(version).any())
            needs["logprobs"] = needs["logprobs"] or is_stale
            outputs = Outputs(None, None, None)
            if any(needs.values()):
                with torch.no_grad():
                    outputs = self._evaluate(minibatch, needs)
                check_finite(outputs)
            if is_stale:
                objective.proximal = outputs.logprobs
            timelines.append(objective.fill_timeline(outputs))
        parts: Sequence[CreditResult | None] = [None] * len(timelines)
        metrics: dict[str, Tensor] = {}
        if self.recipe.credit is not None:
            fresh = [objective.minibatch.fresh for objective in objectives]
            parts, metrics = compute_update_credit(
                self.recipe, timelines, self.horizon, fresh, in_detail=self.config.measure_credit
            )
        for objective, timeline, part in zip(objectives, timelines, parts, strict=True):
            objective.start_from(timeline, part)
        return metrics

    def _evaluate(self, minibatch: TrajectoryMinibatch, needs: dict[str, bool]) -> Outputs:
        return self._fit_memory(minibatch, partial(evaluate, self._evaluator, minibatch.packed, **needs))

    def _fit_memory(
        self,
        minibatch: TrajectoryMinibatch,
        run: Callable[[], Result],
        prepare_retry: Callable[[], None] = lambda: None,
    ) -> Result:
        """The result of `run`, cut finer if memory asks for it. A rank without memory has ended."""
        if self.ranks is not None:
            return run()
        return self._budget.fit_memory([minibatch], run, prepare_retry)

    def _take_step(
        self, objective: Objective, steps: Sequence[Step], *, is_first: bool, check_parity: CheckParity | None
    ) -> dict[str, Tensor]:
        metrics = self._pull_gradients(objective, with_entropies=is_first or self.recipe.entropy_coef > 0)
        if not is_first:  # the weights have changed, so the engine's logprobs are no longer comparable
            metrics = {name: x for name, x in metrics.items() if not name.startswith("parity/")}
        elif check_parity is not None and objective.gaps is not None:
            check_parity(objective.gaps, partial(measure_errors, self.policy, steps, objective.version))
        limit = self.config.guard.max_kl
        if not is_first and limit is not None and float(metrics.get("update_kl", 0.0)) > limit:
            self._stepper.zero_grad()
            return metrics  # without a norm: no step was taken
        if objective.instruction_targets is not None:
            metrics |= teach_instructions(
                self._evaluator,
                objective.minibatch,
                objective.instruction_targets,
                coef=self.recipe.value_coef,
            )
        norms = self._stepper.clip_gradients(self.config.optimizer.grad_clip)
        error = judge_gradient(self.num_done + 1, norms, self.config.max_grad_norm, metrics)
        if error is not None:
            self._stepper.zero_grad()
            raise error
        self._stepper.step(moves_actor=objective.trains_policy)
        return metrics | norms

    def _pull_gradients(self, objective: Objective, *, with_entropies: bool) -> dict[str, Tensor]:
        """Compute the gradients of one minibatch, cut as finely as memory asks for."""
        has_run = objective.has_run

        def pull() -> dict[str, Tensor]:
            self._stepper.zero_grad()
            return backward(
                self._evaluator,
                objective.minibatch.packed,
                objective,
                values=self.recipe.needs_critic,
                entropies=with_entropies,
                ref_kls=objective.needs_ref_kls,
            )[1]

        def prepare_retry() -> None:
            objective.has_run = has_run
            if self._runs_in_parts(objective) and not objective.is_started:
                self._compute_credit([objective])

        return self._fit_memory(objective.minibatch, pull, prepare_retry)
