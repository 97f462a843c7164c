"""Credit of one update: computed once, on the whole batch, before its first optimizer step.

    timelines of all minibatches ─► join ─► credit ─► whiten ─► cut ─► one result per minibatch

Minibatches and passes only cut what follows, so that how a batch is cut changes no advantage: siblings, the
share of the best and whitening all look at the whole batch, and values are those of the first weights.

Invariant: the parts of a result, put end to end, are the result of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from stepwell.algos import Timeline
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import load_function
from stepwell.algos.recipes import Recipe
from stepwell.core.errors import ConfigError
from stepwell.core.user_code import format_own_lines
from stepwell.core.user_objects import is_import_path
from stepwell.training.credit_measures import compute_explained_variance, measure_credit

_LABELS = ("groups", "anchors")


def compute_update_credit(
    recipe: Recipe,
    timelines: Sequence[Timeline],
    horizon: int | None,
    fresh: Sequence[Tensor] | None = None,
    *,
    in_detail: bool = False,
) -> tuple[list[CreditResult], dict[str, Tensor]]:
    """The credit of each minibatch, and what the critic explains of the targets of `fresh` steps (None: all).

    A success that is replayed for being one says nothing about a critic. `in_detail` adds figures by step and
    by site (`credit_measures.py`).
    """
    spec = recipe.credit
    assert spec is not None
    kwargs = dict(spec.kwargs)
    if "horizon" in recipe.credit_traits.fills and kwargs.get("horizon") is None:
        kwargs["horizon"] = horizon
    whole = join_timelines(timelines)
    credit = _call_credit(spec.name, whole, kwargs)
    metrics, values = {}, None
    if credit.value_targets is not None and credit.value_sites is not None:
        values = read_values_at(whole, credit.value_sites)
        own: Any = slice(None) if fresh is None else torch.cat(list(fresh))[credit.value_sites[:, 0]]
        if len(values[own]):
            metrics["explained_variance"] = compute_explained_variance(values[own], credit.value_targets[own])
    if in_detail:
        metrics |= measure_credit(whole, credit, values)
    credit = credit.whiten_advantages(recipe.whiten) if recipe.whiten else credit
    return cut_credit(credit, timelines), metrics


def _call_credit(name: str, timeline: Timeline, kwargs: dict[str, Any]) -> CreditResult:
    """The result of a credit function. An error in a user's own function says that it comes from there."""
    function = load_function("credit", name)
    if not is_import_path(name):
        built_in: CreditResult = function(timeline, **kwargs)
        return built_in
    try:
        result: object = function(timeline, **kwargs)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"recipe.credit: {name} failed:\n{format_own_lines(error)}") from error
    tensor = result.advantages if isinstance(result, CreditResult) else None
    if not isinstance(result, CreditResult) or tensor is None or len(tensor) != timeline.num_tokens:
        given = type(result).__name__ if tensor is None else f"{len(tensor)} advantages"
        raise ConfigError(
            f"recipe.credit: {name} must return a CreditResult with an advantage for each of the "
            f"{timeline.num_tokens} action tokens, got {given}"
        )
    if not bool(tensor.isfinite().all()):
        bad = tensor[~tensor.isfinite()][0].item()
        raise ConfigError(f"recipe.credit: {name} gave the advantage {bad}; guard divisions and logarithms")
    return result


def join_timelines(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline of all trajectories, in order. Groups and anchors of different parts stay different."""
    if len(timelines) == 1:
        return timelines[0]
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(Timeline)):
        parts = [getattr(timeline, name) for timeline in timelines]
        if all(part is None for part in parts):
            continue
        if name in _LABELS:
            starts, total = [], 0
            for part in parts:
                starts.append(total)
                total += int(part.max()) + 1
            parts = [part + start for part, start in zip(parts, starts, strict=True)]
        elif name == "bootstrap":
            parts = [timeline.read_bootstrap() for timeline in timelines]
        joined[name] = torch.cat(parts)
    return Timeline(**joined)


def cut_credit(credit: CreditResult, timelines: Sequence[Timeline]) -> list[CreditResult]:
    """The result of a joined timeline as one result per part."""
    if len(timelines) == 1:
        return [credit]

    def cut(values: Tensor | None, sizes: list[int]) -> list[Tensor | None]:
        return [None] * len(timelines) if values is None else list(torch.split(values, sizes))

    steps = [timeline.num_steps for timeline in timelines]
    advantages = torch.split(credit.advantages, [timeline.num_tokens for timeline in timelines])
    by_step, keep = cut(credit.step_advantages, steps), cut(credit.keep, steps)
    instructions = cut(credit.instruction_targets, [timeline.num_trajectories for timeline in timelines])
    results, first = [], 0
    for i, timeline in enumerate(timelines):
        sites = targets = None
        if credit.value_sites is not None and credit.value_targets is not None:
            step = credit.value_sites[:, 0]
            inside = (step >= first) & (step < first + timeline.num_steps)
            targets, sites = credit.value_targets[inside], credit.value_sites[inside].clone()
            sites[:, 0] -= first
        results.append(
            CreditResult(timeline, advantages[i], by_step[i], targets, sites, keep[i], instructions[i])
        )
        first += timeline.num_steps
    return results


def read_values_at(timeline: Timeline, sites: Tensor) -> Tensor:
    """[site]: the values that a timeline holds at these sites."""
    values = timeline.rewards.new_zeros(timeline.num_tokens + timeline.num_steps)
    values[timeline.index_sites(timeline.token_sites)] = timeline.read_token_values()
    values[timeline.index_sites(timeline.end_sites)] = timeline.read_end_values()
    return values[timeline.index_sites(sites)]
