"""The contract of a recipe: its functions keep their contracts, and together they give a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from stepwell.algos import LossInputs, Recipe, Timeline
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import FunctionSpec, load_function
from stepwell.algos.kl import estimate_kl, kl_loss, kl_reward
from stepwell.algos.losses import VALUE_LOSSES
from stepwell.algos.recipes import find_recipe
from stepwell.contracts.credit import HORIZON, check_credit, make_batch
from stepwell.contracts.loss import check_loss, find_gradient
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.errors import ContractError


def check_recipe(name: str | Recipe) -> ContractReport:
    """Report whether a recipe works. Invalid combinations are refused earlier (`ConfigError`)."""
    recipe = find_recipe(name)
    return run_checks(f"recipe {recipe.name}", CHECKS, recipe)


def combines(recipe: Recipe) -> str:
    """Check that the choices are compatible; an existing recipe has passed this already."""
    needs = {
        "a critic": recipe.needs_critic,
        "a reference": recipe.needs_reference,
        "several trajectories per task": recipe.needs_groups,
    }
    return f"needs {', '.join(what for what, is_needed in needs.items() if is_needed) or 'nothing besides'}"


def credit_keeps_its_contract(recipe: Recipe) -> str:
    if recipe.credit is None:
        return "it has none"
    return _summarize(recipe.credit, check_credit(recipe.credit.name, recipe.credit.kwargs))


def loss_keeps_its_contract(recipe: Recipe) -> str:
    return _summarize(recipe.loss, check_loss(recipe.loss.name, recipe.loss.kwargs))


def gives_the_policy_a_gradient(recipe: Recipe) -> str:
    timeline = make_batch(recipe.credit_traits)
    noise = torch.rand(timeline.num_tokens, generator=torch.Generator().manual_seed(7))
    behavior = -1.0 - noise
    policy = (behavior + 0.02 * noise.sin()).requires_grad_()
    # (without a model there are no whole distributions; k2's gradient is the full KL's in expectation)
    estimator = "k2" if recipe.needs_full_kl else recipe.kl.estimator if recipe.kl is not None else ""
    if recipe.kl is not None and recipe.kl.kl_in == "reward":
        penalty = kl_reward(estimate_kl(estimator, policy.detach(), behavior), coef=recipe.kl.coef)
        timeline = replace(timeline, token_rewards=penalty)
    credit = _compute_credit(recipe, timeline)
    inputs = LossInputs(
        timeline,
        policy,
        behavior,
        None if credit is None else credit.advantages,
        ref_logprobs=behavior - 0.01,
        loss_mask=None if credit is None else credit.loss_mask,
    )
    loss, _ = load_function("loss", recipe.loss.name)(inputs, **recipe.loss.kwargs)
    if recipe.kl is not None and recipe.kl.kl_in == "loss":
        loss = loss + kl_loss(estimate_kl(estimator, policy, behavior), timeline, coef=recipe.kl.coef)[0]
    gradient = find_gradient(loss, policy)
    if not bool(gradient.any()):
        raise ContractError("credit and loss together give the policy no gradient")
    if not bool(gradient.isfinite().all()):
        raise ContractError("credit and loss together give a gradient that is not finite")
    return f"{int((gradient != 0).sum())} of {timeline.num_tokens} action tokens get one"


def trains_its_critic(recipe: Recipe) -> str:
    if recipe.value is None:
        return "it has none"
    credit = _compute_credit(recipe, make_batch(recipe.credit_traits))
    assert credit is not None and credit.value_targets is not None
    values = torch.full_like(credit.value_targets, 0.5).requires_grad_()
    loss, _ = VALUE_LOSSES[recipe.value.loss](values, credit.value_targets)
    if not bool(find_gradient(loss, values).any()):
        raise ContractError("the value loss gives the critic no gradient")
    return f"{recipe.value.loss} at {len(values)} sites ({recipe.value.sites})"


CHECKS: tuple[Callable[[Recipe], str], ...] = (
    combines,
    credit_keeps_its_contract,
    loss_keeps_its_contract,
    gives_the_policy_a_gradient,
    trains_its_critic,
)


def _compute_credit(recipe: Recipe, timeline: Timeline) -> CreditResult | None:
    if recipe.credit is None:
        return None
    filled = {"horizon": HORIZON} if "horizon" in recipe.credit_traits.fills else {}
    function = load_function("credit", recipe.credit.name)
    result: CreditResult = function(timeline, **{**filled, **recipe.credit.kwargs})
    return result.whiten_advantages(recipe.whiten) if recipe.whiten else result


def _summarize(spec: FunctionSpec, report: ContractReport) -> str:
    if report.ok:
        return f"{spec}: {len(report.findings)} checks"
    broken = next(finding for finding in report.findings if not finding.ok)
    raise ContractError(f"{spec.name}: {broken.name}: {broken.detail}")
