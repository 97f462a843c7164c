"""Critic losses over the sites that a credit function names.

`values` are predictions at `CreditResult.value_sites`, `targets` are `value_targets`. Only
`values` carry gradient. A microbatch gives the number of trained sites of its whole minibatch as
`num_sites`; the losses of the parts then add up to the loss of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from stepwell.algos.checks import check_floats, check_mask
from stepwell.algos.losses.inputs import Metrics
from stepwell.algos.scalar_checks import check_positive
from stepwell.core.errors import InputError

_OUTCOMES_ONLY = (
    'value_bce is for outcomes: set recipe.reward_parts=["outcome"] and rewards.scale=1, or use value_mse'
)


def value_mse(
    values: Tensor,
    targets: Tensor,
    *,
    clip: float | None = None,
    old_values: Tensor | None = None,
    mask: Tensor | None = None,
    num_sites: int | None = None,
) -> tuple[Tensor, Metrics]:
    """Mean of (v − y)².

    With `clip`, a site's loss is the larger of that and the squared error of v held within
    ±clip of `old_values` (the critic's values at the start of the update).
    """
    values, targets = _check_sites(values, targets, mask)
    errors = (values - targets).square()
    metrics: Metrics = {}
    if clip is not None:
        check_positive("clip", clip)
        if old_values is None:
            raise InputError(
                "old_values: missing, and clip needs it; give the critic's values before the update"
            )
        old = (
            check_floats("old_values", old_values, len(values), "site", values.device)
            .detach()
            .to(values.dtype)
        )
        held = torch.maximum(torch.minimum(values, old + clip), old - clip)
        clipped = (held - targets).square()
        metrics["clip_fraction"] = _mean_over_sites(
            (clipped > errors).to(values.dtype), mask, num_sites
        ).detach()
        errors = torch.maximum(errors, clipped)
    return _mean_over_sites(errors, mask, num_sites), metrics | _make_metrics(
        values, targets, mask, num_sites
    )


def value_bce(
    values: Tensor,
    targets: Tensor,
    *,
    from_logits: bool = False,
    mask: Tensor | None = None,
    num_sites: int | None = None,
) -> tuple[Tensor, Metrics]:
    """Mean of −[y·log v + (1 − y)·log(1 − v)] (WebRL eq. 7); y is the final binary outcome.

    `values` are probabilities, as credit reads them. A critic that emits logits passes those with
    `from_logits=True`, which is exact where the probability rounds to 0 or 1.
    """
    values, targets = _check_sites(values, targets, mask)
    _check_probabilities("targets", targets, _OUTCOMES_ONLY)
    if from_logits:
        errors = F.binary_cross_entropy_with_logits(values, targets, reduction="none")
        values = values.sigmoid()
    else:
        _check_probabilities("values", values, "apply a sigmoid, or pass logits with from_logits=True")
        errors = F.binary_cross_entropy(values, targets, reduction="none")
    return _mean_over_sites(errors, mask, num_sites), _make_metrics(values, targets, mask, num_sites)


def _check_sites(values: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    check_floats("targets", targets, None, "site")
    check_floats("values", values, len(targets), "site", targets.device)
    if len(targets) == 0:
        raise InputError("targets: empty; skip the update instead")
    if mask is not None:
        check_mask("mask", mask, len(targets), "site", targets.device)
    return values, targets.detach().to(values.dtype)


def _check_probabilities(name: str, x: Tensor, fix: str) -> None:
    if bool(((x < 0) | (x > 1)).any()):
        raise InputError(f"{name}: {x.min().item():g}..{x.max().item():g} leaves [0, 1]; {fix}")


def _mean_over_sites(x: Tensor, mask: Tensor | None, num_sites: int | None) -> Tensor:
    if num_sites is None:
        num_sites = len(x) if mask is None else int(mask.sum())
    if num_sites < 1:
        raise InputError("mask: selects no site of the whole minibatch; skip the update instead")
    return (x if mask is None else torch.where(mask, x, 0.0)).sum() / num_sites


def _make_metrics(values: Tensor, targets: Tensor, mask: Tensor | None, num_sites: int | None) -> Metrics:
    with torch.no_grad():
        return {
            "value_mean": _mean_over_sites(values, mask, num_sites),
            "target_mean": _mean_over_sites(targets, mask, num_sites),
            "absolute_error": _mean_over_sites((values - targets).abs(), mask, num_sites),
        }
