"""Supervised training on demonstrations: the warm start, and the baseline it is compared with.

The actor learns the demonstrated actions. Critics, if there are any, learn what the recipe will read of
them (`critics.py`). The order of batches, and what a flow head draws in each, depend on the seed only.
A robot policy first centres and scales its inputs by the demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stepwell.algos.recipes import Recipe
from stepwell.config.training import WarmStartConfig
from stepwell.core import DivergenceError, InputError, Trajectory
from stepwell.core.arrays import IntArray
from stepwell.packing import Outputs, backward
from stepwell.policies.vla import VLAPolicy
from stepwell.training.batch import TrajectoryMinibatch, oom_as_config_error
from stepwell.training.batch_split import count_batches
from stepwell.training.critics import (
    compute_critic_loss,
    compute_critic_targets,
    prepare_critics,
    teach_instructions,
)
from stepwell.training.objective_parts import ObjectivePart, ValueSites
from stepwell.training.optimizer import Optimizer, explain_nan, rate_share
from stepwell.training.policy import Policy

_WARMUP = 10
_ADVICE = "Lower warm_start.optimizer.learning_rate, or scale rewards down (rewards.scale)"


def imitate(
    policy: Policy,
    demonstrations: Sequence[Trajectory],
    config: WarmStartConfig,
    seed: int,
    *,
    recipe: Recipe | None = None,
    token_budget: int | None = None,
    micro_batch: int | None = None,
) -> Iterator[dict[str, float]]:
    """Train and yield the metrics of each update; the caller may stop at any time.

    `recipe` is the one that follows; it says what critics learn. The last two arguments limit the memory (as
    in `TrajectoryMinibatch`) and change no gradient.
    """
    if not demonstrations:
        raise InputError("warm_start: nothing to learn from; set warm_start.num_demos or warm_start.chats")
    if recipe is not None:
        prepare_critics(policy, recipe)
    if isinstance(policy, VLAPolicy):
        policy.fit_inputs([step.state for shown in demonstrations for step in shown.steps])
    optimizer = Optimizer(policy.named_parameters(), config.optimizer)
    total = count_batches(config, len(demonstrations))
    order = _shuffle_batches(len(demonstrations), config, seed)
    for number in range(total):
        drawn = (seed << 32) + number
        shown = [demonstrations[i] for i in next(order)]
        batch = TrajectoryMinibatch(
            shown, policy.device, token_budget=token_budget, micro_batch=micro_batch, seed=drawn
        )
        optimizer.set_rate(
            rate_share(number, num_updates=total, schedule=config.schedule, warmup=_WARMUP, final=0.0)
        )
        optimizer.zero_grad()
        with_values = policy.critic is not None and config.value_coef > 0
        place = f"warm start, update {number + 1}"
        with explain_nan(place, _ADVICE), oom_as_config_error(place, [batch]):
            lesson = _Imitation(batch, config, policy, recipe)
            _, metrics, _ = backward(policy, batch.packed, lesson, values=with_values)
            if with_values and recipe is not None and recipe.needs_instruction_critic:
                outcomes = batch.timeline.outcomes
                metrics |= teach_instructions(policy, batch, outcomes, coef=config.value_coef)
        norms = optimizer.clip_gradients(config.optimizer.grad_clip)
        if not all(bool(norm.isfinite()) for norm in norms.values()):
            raise DivergenceError(f"{place}: the gradient is not finite. {_ADVICE}")
        optimizer.step()
        yield {name: float(value) for name, value in (metrics | norms).items()}


def _shuffle_batches(count: int, config: WarmStartConfig, seed: int) -> Iterator[list[int]]:
    epoch = 0
    while True:
        shuffled = np.random.default_rng([seed, epoch, count]).permutation(count).tolist()
        for start in range(0, count, config.batch_size):
            yield shuffled[start : start + config.batch_size]
        epoch += 1


class _Imitation:
    """−logprob of the demonstrated actions, and the critic's loss."""

    def __init__(
        self, batch: TrajectoryMinibatch, config: WarmStartConfig, policy: Policy, recipe: Recipe | None
    ) -> None:
        self._batch, self._coef, self._recipe = batch, config.value_coef, recipe
        self._link = None if policy.critic is None else policy.critic.link

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        return self._combine_terms(outputs, ObjectivePart(self._batch.timeline))

    def is_separate(self, steps: IntArray) -> bool:
        """Every step is learnt from on its own."""
        return True

    def compute_part(self, outputs: Outputs, steps: IntArray) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of some steps in the loss."""
        timeline = self._batch.timeline
        places = torch.from_numpy(steps).to(timeline.rewards.device)
        return self._combine_terms(outputs, ObjectivePart.take(timeline, places))

    def measure_whole(self, outputs: Outputs) -> dict[str, Tensor]:
        """All metrics add up over parts."""
        return {}

    def _combine_terms(self, outputs: Outputs, part: ObjectivePart) -> tuple[Tensor, dict[str, Tensor]]:
        assert outputs.logprobs is not None
        loss = -outputs.logprobs.sum() / self._batch.timeline.num_tokens
        metrics = {"loss/policy": loss.detach()}
        if outputs.values is None:
            return loss, metrics
        sites = part.select_sites(self._sites)
        if len(sites):
            predicted = outputs.values[part.timeline.index_sites(sites.sites)]
            error = compute_critic_loss(self._link, predicted, sites.targets, num_sites=len(self._sites))
            metrics["loss/value"] = error.detach()
            loss = loss + self._coef * error
        return loss, metrics

    @cached_property
    def _sites(self) -> ValueSites:
        lesson = compute_critic_targets(self._recipe, self._batch.timeline)
        assert lesson.value_targets is not None and lesson.value_sites is not None
        return ValueSites(lesson.value_sites, lesson.value_targets, lesson.value_targets)
