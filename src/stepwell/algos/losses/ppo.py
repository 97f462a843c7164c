"""The clipped policy-ratio loss, at three granularities.

`ratio` says what one decision is: a token (PPO), a step (StepPO eq. 7-8) or a trajectory (GSPO).
A coarser ratio is the geometric mean of the token ratios, so its size does not grow with length.
`aggregate` says how terms are averaged (see `reduction`). Under a coarser ratio a unit has one
term, the mean over its tokens, repeated to each of them.

Asynchronous data: with `proximal_logprobs` given, the ratio is policy / proximal, and each term is
weighted by the detached proximal / behavior ratio of the same granularity, cut at
`correction_cap`. With proximal equal to behavior the loss is the plain one.

Log-ratios are clamped to ±20 before exponentiation: beyond that the float would overflow, and a
ratio of e^20 is clipped or hopeless anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.losses.reduction import UNITS, Aggregate, Unit
from stepwell.algos.scalar_checks import check_choice, check_not_negative, check_positive
from stepwell.core.errors import InputError

LOG_RATIO_LIMIT = 20.0


@loss(
    needs=("advantages", "behavior"),
    couples="step",
    old_samples="corrected",
    variants={"ratio": {"trajectory": {"couples": "trajectory"}}},
)
def ppo_loss(
    inputs: LossInputs,
    *,
    ratio: Unit = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregate: Aggregate = "token_mean",
    correction_cap: float = 2.0,
) -> tuple[Tensor, Metrics]:
    """−min(w·A, clip(w, 1−clip_low, 1+clip_high)·A), averaged."""
    check_choice("ratio", ratio, UNITS)
    check_not_negative("clip_high", clip_high)
    check_positive("correction_cap", correction_cap)
    if not 0.0 <= clip_low <= 1.0:
        raise InputError(f"clip_low: {clip_low} is outside [0, 1]; the ratio cannot fall below 0")
    reduction, advantages, behavior = inputs.reduction, inputs.read_advantages(), inputs.read_behavior()
    weights = reduction.token_weights(aggregate)
    old = _read_old(inputs)
    w = _compute_ratios(inputs, old, ratio)
    terms = -torch.minimum(w * advantages, w.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    metrics: Metrics = {}
    if inputs.proximal_logprobs is not None:
        correction = clamp_exp(reduction.average_by_unit(old - behavior, ratio))
        terms = terms * correction.clamp(max=correction_cap)
        metrics["correction_mean"] = weights @ correction
        metrics["correction_capped_fraction"] = weights @ (correction > correction_cap).to(weights)
    loss = weights @ reduction.average_by_unit(terms, ratio)

    with torch.no_grad():
        clipped = _find_clipped(w, advantages, clip_low, clip_high)
        log_w = inputs.policy_logprobs - behavior
        metrics["ratio_mean"] = weights @ w
        metrics["clip_fraction"] = weights @ clipped.to(weights)
        metrics["approx_kl"] = weights @ (clamp_exp(log_w) - 1.0 - log_w)
        metrics["advantage_mean"] = weights @ advantages
    return loss, metrics


def measure_ratios(
    inputs: LossInputs, *, ratio: Unit = "token", clip_low: float = 0.2, clip_high: float = 0.2
) -> tuple[Tensor, Tensor]:
    """[token] ratios as `ppo_loss` compares them, and [token] bool: beyond the clip range."""
    with torch.no_grad():
        w = _compute_ratios(inputs, _read_old(inputs), ratio)
        return w, _find_clipped(w, inputs.read_advantages(), clip_low, clip_high)


def _read_old(inputs: LossInputs) -> Tensor:
    return inputs.read_behavior() if inputs.proximal_logprobs is None else inputs.read_proximal()


def _compute_ratios(inputs: LossInputs, old: Tensor, ratio: Unit) -> Tensor:
    return clamp_exp(inputs.reduction.average_by_unit(inputs.policy_logprobs - old, ratio))


def _find_clipped(w: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    return torch.where(advantages > 0, w > 1.0 + clip_high, w < 1.0 - clip_low) & (advantages != 0)


def clamp_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
