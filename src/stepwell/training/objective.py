"""The objective of an update: the parts of a recipe combined over one minibatch.

    outputs ─► values ─► credit ─► whiten ─► policy loss ─┐
                  └────────────────────────► value loss ──┼─► loss
    reference ─► KL (in the reward, before credit; or in the loss) ┘   entropy bonus

Credit is that of the update's start (`update_credit.py`). Where an update has several minibatches it is given
(`start_from`), because the weights will have changed by the first pass over the later ones. A minibatch that
is alone computes it in its first pass, from the values of the same pass: no forward pass is needed for
values alone. The first pass also compares the policy's logprobs with those of the engine
(`gaps`; `parity/max`, `parity/mean`): with freshly published weights they must agree.

Data of an asynchronous run are of several versions. Given the trainer's present `version`, only what
that version sampled is compared; for the rest `proximal_logprobs` are those of the start of the update
(`proximal`, or where this minibatch is the first of the update, those of the first pass), and the loss
weights it by the truncated ratio. Fresh data keep the plain ratio: for them proximal is behavior.

A minibatch of which no step is kept (DigiRL's filter, replay) gives the policy nothing to learn; its critic
still learns.

With credit given, the objective is a sum over steps, or over trajectories where the loss couples them
(`LossTraits.couples`). It is then a `SeparableLoss`: a part divides by the counts of the whole minibatch, so
that losses, metrics and gradients of parts add up to those of the whole. A loss that couples the whole batch
is computed on all outputs at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stepwell.algos import LossInputs, Timeline
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import load_function
from stepwell.algos.kl import estimate_kl, kl_loss, kl_reward
from stepwell.algos.losses import entropy_bonus
from stepwell.algos.losses.ppo import LOG_RATIO_LIMIT, measure_ratios, ppo_loss
from stepwell.algos.losses.reduction import Aggregate, MinibatchCounts
from stepwell.algos.recipes import Recipe
from stepwell.core import LogprobGaps
from stepwell.core.arrays import IntArray
from stepwell.core.user_objects import is_import_path
from stepwell.packing import Outputs
from stepwell.packing.device_copies import copy_to_device
from stepwell.policies.critic import apply_link
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.critics import compute_critic_loss
from stepwell.training.loss_metrics import Metrics, rename_metrics
from stepwell.training.objective_parts import ObjectivePart, ValueSites, selects_nothing
from stepwell.training.update_credit import compute_update_credit, read_values_at


@dataclass(eq=False)
class Objective:
    """The loss of one minibatch; call it with the outputs of a pass."""

    recipe: Recipe
    minibatch: TrajectoryMinibatch
    ref_logprobs: Tensor | None = None
    horizon: int | None = None
    value_clip: float | None = None
    version: int | None = None
    proximal: Tensor | None = None
    instruction_values: Tensor | None = None
    in_detail: bool = False
    trains_policy: bool = True
    gaps: LogprobGaps | None = None
    _credit: CreditResult | None = None
    _timeline: Timeline | None = None
    has_run: bool = False  # whether a pass was made; the first one sets credit and compares with the engine
    _last_logprobs: Tensor | None = None
    _charged_kls: Tensor | None = None
    _parts: dict[bytes, ObjectivePart] = field(default_factory=dict)

    @property
    def credit(self) -> CreditResult | None:
        """The credit of this minibatch, after the first pass."""
        return self._credit

    @property
    def timeline(self) -> Timeline:
        """The timeline with the critic's values, after the first pass."""
        assert self._timeline is not None
        return self._timeline

    @property
    def is_started(self) -> bool:
        """Whether credit is known."""
        return self._timeline is not None

    def start_from(self, timeline: Timeline, credit: CreditResult | None) -> None:
        """Take the credit of this minibatch, computed at the start of the update."""
        self._timeline, self._credit = timeline, credit

    def __call__(self, outputs: Outputs) -> tuple[Tensor, Metrics]:
        metrics = self._begin_pass(outputs)
        assert self._timeline is not None
        loss, more = self._combine_terms(outputs, ObjectivePart(self._timeline))
        return loss, metrics | more

    # --- in parts -----------------------------------------------------------------------

    @property
    def couples(self) -> str:
        """What must be in one part: "step", "trajectory" or "batch"."""
        return str(self.recipe.loss_traits.couples)

    def is_separate(self, steps: IntArray) -> bool:
        """Whether the loss of these steps depends on the outputs of no other step."""
        if self._timeline is None or self.couples == "batch":
            return False
        if self.couples == "step":
            return True
        owners = self._step_owners
        acting = steps[steps < owners.size]
        counts = np.bincount(owners[acting], minlength=owners[-1] + 1)
        whole = np.bincount(owners)
        return bool(((counts == 0) | (counts == whole)).all())

    def compute_part(self, outputs: Outputs, steps: IntArray) -> tuple[Tensor, Metrics]:
        """The share of some steps (ascending) in the loss; those after the last step are bootstraps."""
        timeline = self._timeline
        assert timeline is not None and outputs.logprobs is not None
        acting = steps[steps < timeline.num_steps]
        if not acting.size:
            return outputs.logprobs.new_zeros(()), {}
        key = acting.tobytes()
        if key not in self._parts:
            places = copy_to_device(acting, timeline.rewards.device)
            self._parts[key] = ObjectivePart.take(timeline, places)
        return self._combine_terms(outputs, self._parts[key])

    def measure_whole(self, outputs: Outputs) -> Metrics:
        """What is measured on the outputs of all parts."""
        return self._begin_pass(outputs)

    @cached_property
    def _step_owners(self) -> IntArray:
        """[step]: the number of its trajectory."""
        lengths = [len(trajectory.steps) for trajectory in self.minibatch.trajectories]
        return np.repeat(np.arange(len(lengths)), lengths)

    # --- terms --------------------------------------------------------------------------

    def _begin_pass(self, outputs: Outputs) -> Metrics:
        """Set what the first pass sets, and report what is measured on the whole minibatch."""
        assert outputs.logprobs is not None
        metrics = {} if self.has_run else self._run_first_pass(outputs)
        self.has_run, self._last_logprobs = True, outputs.logprobs.detach()
        return metrics | self._measure_change(outputs.logprobs.detach())

    def _combine_terms(self, outputs: Outputs, part: ObjectivePart) -> tuple[Tensor, Metrics]:
        assert outputs.logprobs is not None
        metrics: Metrics = {}
        if self.trains_policy:
            loss, metrics = self._compute_policy_loss(outputs.logprobs, part)
        else:
            loss = 0.0 * outputs.logprobs.sum()
        terms = (self.compute_value_loss, self._compute_kl_loss, self._compute_entropy_term)
        for term in terms if self.trains_policy else terms[:1]:
            extra, more = term(outputs, part)
            metrics |= more
            loss = loss if extra is None else loss + extra
        metrics["loss"] = loss.detach()
        return loss, metrics

    def _measure_change(self, logprobs: Tensor) -> Metrics:
        """`update_kl`: how far the policy is from the one that sampled (or began the update), per token."""
        behavior = self.minibatch.behavior_logprobs
        start = behavior if self.proximal is None else self.proximal
        if start is None:
            return {}
        change = (logprobs - start.to(logprobs.dtype)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return {"update_kl": (torch.expm1(change) - change).mean()}

    def _compute_policy_loss(self, logprobs: Tensor, part: ObjectivePart) -> tuple[Tensor, Metrics]:
        if selects_nothing(self.loss_mask):
            return 0.0 * logprobs.sum(), {"loss/policy": logprobs.new_zeros(())}
        inputs = self._build_inputs(logprobs, part, self.loss_mask)
        spec = self.recipe.loss
        loss, metrics = load_function("loss", spec.name)(inputs, **spec.kwargs)
        named = rename_metrics(metrics, keep_all=is_import_path(spec.name))
        return loss, {"loss/policy": loss.detach()} | named

    def _build_inputs(self, logprobs: Tensor, part: ObjectivePart, mask: Tensor | None) -> LossInputs:
        credit = self._credit
        return LossInputs(
            part.timeline,
            logprobs,
            part.select_tokens(self.minibatch.behavior_logprobs),
            part.select_tokens(None if credit is None else credit.advantages),
            ref_logprobs=part.select_tokens(self.ref_logprobs),
            proximal_logprobs=self._find_proximal(logprobs.detach(), part),
            loss_mask=part.select_tokens(mask),
            minibatch=part.count_with(lambda: self._loss_counts),
        )

    @cached_property
    def _loss_counts(self) -> MinibatchCounts:
        assert self._timeline is not None
        return MinibatchCounts.of(self._timeline, self.loss_mask)

    @cached_property
    def _mask_counts(self) -> MinibatchCounts:
        assert self._timeline is not None
        return MinibatchCounts.of(self._timeline, self._minibatch_mask)

    def measure_last_pass(self) -> tuple[Tensor | None, Tensor | None]:
        """[token] ratios of the last pass, and [token] bool: clipped. None without logprobs to compare."""
        logprobs, mask = self._last_logprobs, self.loss_mask
        if logprobs is None or self.minibatch.behavior_logprobs is None or self._credit is None:
            return None, None
        inputs = self._build_inputs(
            logprobs, ObjectivePart(self.timeline), None if selects_nothing(mask) else mask
        )
        spec = self.recipe.loss
        if load_function("loss", spec.name) is not ppo_loss:
            return measure_ratios(inputs)[0], None
        names = ("ratio", "clip_low", "clip_high")
        return measure_ratios(inputs, **{name: spec.kwargs[name] for name in names if name in spec.kwargs})

    @property
    def loss_mask(self) -> Tensor | None:
        """[token]: what the policy learns from; credit and minibatch may both leave steps out."""
        masks = (self.minibatch.keep, None if self._credit is None else self._credit.keep)
        chosen = [keep for keep in masks if keep is not None]
        if not chosen:
            return None
        return self.minibatch.timeline.steps_to_tokens(torch.stack(chosen).all(dim=0))

    @property
    def _minibatch_mask(self) -> Tensor | None:
        """[token]: as far as the minibatch decides."""
        keep = self.minibatch.keep
        return None if keep is None else self.minibatch.timeline.steps_to_tokens(keep)

    def _run_first_pass(self, outputs: Outputs) -> Metrics:
        """Set timeline and credit if they were not given; report what only the first pass can measure."""
        assert outputs.logprobs is not None
        metrics: Metrics = {}
        if self.minibatch.behavior_logprobs is not None:
            metrics |= self._compare_with_engine(outputs.logprobs.detach())
        if self._timeline is None:
            self._timeline = timeline = self.fill_timeline(outputs)
            if self.recipe.credit is not None:
                (self._credit,), more = compute_update_credit(
                    self.recipe, [timeline], self.horizon, [self.minibatch.fresh], in_detail=self.in_detail
                )
                metrics |= more
        return metrics

    def _compare_with_engine(self, policy: Tensor) -> Metrics:
        """Compare fresh samples with the engine's logprobs; set `proximal` if some samples are stale."""
        if self.version is not None:
            self.proximal = self._start_proximal(policy, ObjectivePart(self.minibatch.timeline))
        self.gaps = gaps = self.minibatch.measure_gaps(policy, self.version)
        if gaps is None:
            return {}
        figures = {
            "parity/max": gaps.max_abs,
            "parity/mean": gaps.mean_abs,
            "parity/typical_mean": gaps.typical_mean,
            "parity/quantile_99": gaps.compute_typical_quantile(0.99),
        }
        return {name: torch.tensor(value, device=policy.device) for name, value in figures.items()}

    def _start_proximal(self, policy: Tensor, part: ObjectivePart) -> Tensor | None:
        """Logprobs of the update's start for samples of older versions; None if there are none."""
        assert self.version is not None
        behind = self.minibatch.is_behind(self.version)
        if not bool(behind.any()):
            return None
        start = policy if self.proximal is None else part.select_tokens(self.proximal)
        chosen, behavior = part.select_tokens(behind), part.select_tokens(self.minibatch.behavior_logprobs)
        assert start is not None and chosen is not None and behavior is not None
        return torch.where(chosen, start, behavior.to(start.dtype))

    def _find_proximal(self, policy: Tensor, part: ObjectivePart) -> Tensor | None:
        """The proximal logprobs of a part; before the first pass has ended they are made from its outputs."""
        if self.has_run or self.version is None or self.minibatch.behavior_logprobs is None:
            return part.select_tokens(self.proximal)
        return self._start_proximal(policy, part)

    @property
    def needs_at_start(self) -> dict[str, bool]:
        """The outputs from which `fill_timeline` takes something."""
        kl, is_full = self.recipe.kl, self.recipe.needs_full_kl
        in_reward = kl is not None and kl.kl_in == "reward"
        needs = {"logprobs": in_reward and not is_full, "values": self.recipe.needs_critic}
        return needs | {"ref_kls": True} if in_reward and is_full else needs

    @property
    def needs_ref_kls(self) -> bool:
        """Whether a pass runs the reference: for a loss, or for rewards that do not have the KL yet."""
        return self.recipe.needs_full_kl and self._charged_kls is None

    def fill_timeline(self, outputs: Outputs) -> Timeline:
        """The timeline with what the critic says now, and the KL as token rewards if it goes there."""
        timeline = self.minibatch.timeline
        kl = self.recipe.kl
        if kl is not None and kl.kl_in == "reward":
            estimates = self._estimate_kl(outputs, self.ref_logprobs).detach()
            self._charged_kls = estimates if self.recipe.needs_full_kl else None
            timeline = replace(timeline, token_rewards=kl_reward(estimates, coef=kl.coef))
        if outputs.values is None or self.recipe.value is None:
            return timeline
        values = apply_link(self.recipe.value.link, outputs.values.detach())
        return replace(
            timeline,
            token_values=values[timeline.index_sites(timeline.token_sites)],
            end_values=values[timeline.index_sites(timeline.end_sites)],
            bootstrap=self.minibatch.bootstrap_values(values),
            instruction_values=self.instruction_values,
        )

    @property
    def instruction_targets(self) -> Tensor | None:
        """[trajectory]: targets of the critic of instructions, after the first pass."""
        return None if self._credit is None else self._credit.instruction_targets

    def compute_value_loss(self, outputs: Outputs, part: ObjectivePart) -> tuple[Tensor | None, Metrics]:
        value, whole = self.recipe.value, self._taught_sites
        if value is None or whole is None or not len(whole):
            return None, {}
        assert outputs.values is not None
        sites = part.select_sites(whole)
        if not len(sites):
            return None, {}
        loss = compute_critic_loss(
            value.link,
            outputs.values[part.timeline.index_sites(sites.sites)],
            sites.targets,
            clip=self.value_clip or None,
            old_values=sites.before,
            num_sites=len(whole),
        )
        return self.recipe.value_coef * loss, {"loss/value": loss.detach()}

    @cached_property
    def _taught_sites(self) -> ValueSites | None:
        """Where the critic is taught; None without a critic."""
        timeline, credit = self._timeline, self._credit
        if timeline is None or credit is None or credit.value_sites is None or credit.value_targets is None:
            return None
        before = read_values_at(timeline, credit.value_sites)
        sites = ValueSites(credit.value_sites, credit.value_targets, before)
        taught = self.minibatch.taught
        return sites if taught is None else sites.keep_sites(taught[sites.sites[:, 0]])

    def _compute_kl_loss(self, outputs: Outputs, part: ObjectivePart) -> tuple[Tensor | None, Metrics]:
        kl, ref = self.recipe.kl, part.select_tokens(self.ref_logprobs)
        charged = part.select_tokens(self._charged_kls)
        is_known = any(known is not None for known in (outputs.ref_kls, ref, charged))
        if kl is None or not is_known or selects_nothing(self._minibatch_mask):
            return None, {}
        if kl.kl_in == "reward":
            with torch.no_grad():
                estimates = self._estimate_kl(outputs, ref) if charged is None else charged
                return None, {"kl": estimates.sum() / self.minibatch.timeline.num_tokens}
        return kl_loss(
            self._estimate_kl(outputs, ref),
            part.timeline,
            coef=kl.coef,
            aggregate=self._aggregate,
            loss_mask=part.select_tokens(self._minibatch_mask),
            minibatch=part.count_with(lambda: self._mask_counts),
        )

    def _estimate_kl(self, outputs: Outputs, ref_logprobs: Tensor | None) -> Tensor:
        """[token]: the KL to the reference; that of whole distributions is an output of the policy."""
        kl = self.recipe.kl
        assert kl is not None
        if kl.estimator == "full":
            assert outputs.ref_kls is not None
            return outputs.ref_kls
        assert outputs.logprobs is not None and ref_logprobs is not None
        return estimate_kl(kl.estimator, outputs.logprobs, ref_logprobs)

    @property
    def _aggregate(self) -> Aggregate:
        """How KL and entropy are averaged: as the policy loss is."""
        traits = self.recipe.loss_traits
        chosen: Aggregate = self.recipe.loss.kwargs.get("aggregate", traits.aggregate)
        return chosen

    def _compute_entropy_term(self, outputs: Outputs, part: ObjectivePart) -> tuple[Tensor | None, Metrics]:
        if outputs.entropies is None or selects_nothing(self._minibatch_mask):
            return None, {}
        bonus, metrics = entropy_bonus(
            outputs.entropies,
            part.timeline,
            aggregate=self._aggregate,
            loss_mask=part.select_tokens(self._minibatch_mask),
            minibatch=part.count_with(lambda: self._mask_counts),
        )
        return (self.recipe.entropy_coef * bonus if self.recipe.entropy_coef else None), metrics
