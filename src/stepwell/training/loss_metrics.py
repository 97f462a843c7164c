"""Metrics of passes: the names of a run for what a loss reports, and means over the passes of an update."""

from __future__ import annotations

import torch
from torch import Tensor

Metrics = dict[str, Tensor]

_METRIC_NAMES = {
    "clip_fraction": "clip_share",
    "ratio_mean": "ratio",
    "kept_fraction": "kept_share",
    "correction_mean": "correction",
    "correction_capped_fraction": "correction_capped_share",
}


def rename_metrics(metrics: Metrics, *, keep_all: bool) -> Metrics:
    """The loss's metrics under the names of a run; a user's own loss has all of them, after `loss/`."""
    known = {_METRIC_NAMES[name]: x for name, x in metrics.items() if name in _METRIC_NAMES}
    own = {f"loss/{name}": x.detach() for name, x in metrics.items() if name not in _METRIC_NAMES}
    return known | own if keep_all else known


def was_left_out(metrics: Metrics) -> bool:
    """Whether these are the metrics of a pass after which no optimizer step was taken."""
    return "grad_norm" not in metrics


def average_metrics(seen: list[Metrics]) -> dict[str, float]:
    """Means over passes of all reported metrics, read from the device once."""
    names = list(dict.fromkeys(name for metrics in seen for name in metrics))
    means = [torch.stack([m[name].float() for m in seen if name in m]).mean() for name in names]
    return dict(zip(names, torch.stack(means).tolist(), strict=True))
