"""The recipe table, executed: every recipe runs end to end, and broken combinations are refused."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from stepwell.algos import RECIPES, LossInputs, Recipe, Timeline, credit, kl, losses
from stepwell.algos.declarations import (
    CREDIT_MODULES,
    KL_ESTIMATORS,
    LOSS_MODULES,
    VALUE_LOSS_NAMES,
    Kind,
    find_declaration,
)
from stepwell.algos.recipes import FunctionSpec, KLChoice, ValueChoice
from stepwell.core.errors import ConfigError

KEYWORD = inspect.Parameter.KEYWORD_ONLY
SITES = {"state": "state_sites", "end": "end_sites", "tokens": "token_sites"}


def sampled_timeline() -> Timeline:
    """Four siblings in two groups with everything a recipe may read."""
    generator = torch.Generator().manual_seed(0)
    steps, tokens = torch.tensor([2, 1, 3, 2]), torch.tensor([2, 1, 3, 1, 2, 2, 1, 4])
    n = int(tokens.sum())
    return Timeline(
        steps,
        tokens,
        rewards=torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
        token_values=torch.rand(n, generator=generator),
        end_values=torch.rand(8, generator=generator),
        token_rewards=-0.001 * torch.rand(n, generator=generator),
        groups=torch.tensor([0, 0, 1, 1]),
        anchors=torch.tensor([0, 1, 0, 0, 1, 1, 0, 1]),
        instruction_values=torch.rand(4, generator=generator),
    )


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_of_the_table_gives_a_gradient(name: str) -> None:
    recipe, timeline = RECIPES[name], sampled_timeline()
    behavior = -1.0 - torch.rand(timeline.num_tokens, generator=torch.Generator().manual_seed(1))
    advantages = mask = None
    if recipe.credit is not None:
        result = credit.CREDIT[recipe.credit.name](timeline, **recipe.credit.kwargs)
        if recipe.whiten is not None:
            result = result.whiten_advantages(recipe.whiten)
        advantages, mask = result.advantages, result.loss_mask
        if recipe.value is not None:
            check_value(recipe, timeline, result)
    policy = (behavior + 0.0001).requires_grad_()
    inputs = LossInputs(timeline, policy, behavior, advantages, ref_logprobs=behavior, loss_mask=mask)
    loss, _ = losses.LOSSES[recipe.loss.name](inputs, **recipe.loss.kwargs)
    if recipe.kl is not None and recipe.kl.kl_in == "loss":
        loss = (
            loss
            + kl.kl_loss(
                kl.estimate_kl(recipe.kl.estimator, policy, behavior), timeline, coef=recipe.kl.coef
            )[0]
        )
    loss.backward()
    assert policy.grad is not None and bool(policy.grad.isfinite().all()) and bool(policy.grad.any())


def check_value(recipe: Recipe, timeline: Timeline, result: credit.CreditResult) -> None:
    """The recipe's value slot names the sites that its credit gives targets for."""
    assert recipe.value is not None and result.value_targets is not None and result.value_sites is not None
    parts = ["tokens", "end"] if recipe.value.sites == "tokens_and_end" else [recipe.value.sites]
    expected = torch.cat([getattr(timeline, SITES[part]) for part in parts])
    assert torch.equal(result.value_sites, expected)
    values = torch.full_like(result.value_targets, 0.5).requires_grad_()
    losses.VALUE_LOSSES[recipe.value.loss](values, result.value_targets)[0].backward()
    assert values.grad is not None and bool(values.grad.any())


def test_the_table_is_that_of_the_maths_page() -> None:
    rows = {
        name: (
            recipe.credit.name if recipe.credit else None,
            recipe.loss.name,
            recipe.value.loss if recipe.value else None,
            recipe.kl.kl_in if recipe.kl else None,
            recipe.whiten,
        )
        for name, recipe in RECIPES.items()
    }
    assert rows == {
        "steppo": ("step_gae", "ppo_loss", "value_mse", "loss", "steps"),
        "ppo": ("token_gae", "ppo_loss", "value_mse", "loss", "tokens"),
        "vanilla-ppo": ("token_gae", "ppo_loss", "value_mse", "reward", "tokens"),
        "turn-ppo": ("turn_gae", "ppo_loss", "value_mse", "loss", "steps"),
        "vagen-base": ("token_gae", "ppo_loss", "value_mse", "reward", "tokens"),
        "vagen-full": ("bilevel_gae", "ppo_loss", "value_mse", "reward", "tokens"),
        "grpo": ("grpo", "ppo_loss", None, "loss", None),
        "rloo": ("rloo", "ppo_loss", None, "loss", None),
        "reinforce++": ("reinforce_pp", "ppo_loss", None, "loss", None),
        "reinforce++-baseline": ("reinforce_pp", "ppo_loss", None, "loss", None),
        "gigpo": ("gigpo", "ppo_loss", None, "loss", None),
        "gspo": ("grpo", "ppo_loss", None, "loss", None),
        "webrl": ("webrl_advantage", "webrl_loss", "value_bce", None, None),
        "digirl": ("digirl_advantage", "sft_loss", "value_bce", None, None),
        "awr": ("mc_advantage", "awr_loss", "value_bce", None, "steps"),
        "filtered-bc": (None, "filtered_bc_loss", None, None, None),
        "sft": (None, "sft_loss", None, None, None),
    }
    assert all(recipe.kl is None or recipe.kl.coef == 0.001 for recipe in RECIPES.values())


def test_particulars_of_the_table() -> None:
    assert RECIPES["steppo"].loss.kwargs["ratio"] == "step"
    assert RECIPES["steppo"].loss.kwargs["aggregate"] == "step_mean"
    assert RECIPES["grpo"].loss.kwargs["aggregate"] == "trajectory_mean"
    gspo = RECIPES["gspo"].loss.kwargs
    assert (gspo["ratio"], gspo["clip_low"], gspo["clip_high"]) == ("trajectory", 3e-4, 4e-4)
    assert RECIPES["ppo"].credit == FunctionSpec(
        "token_gae", {"gamma": 0.99, "lam": 1.0, "reward_at": "step_end"}
    )
    assert RECIPES["vanilla-ppo"].flat_sequence
    assert RECIPES["vagen-full"].reward_parts == ("task", "format", "grounding", "world_modeling")
    assert RECIPES["webrl"].replay and RECIPES["webrl"].curriculum
    assert not any(recipe.bootstrap_truncated or recipe.entropy_coef for recipe in RECIPES.values())


def test_what_a_recipe_needs_follows_from_its_slots() -> None:
    critics = {name for name, recipe in RECIPES.items() if recipe.needs_critic}
    assert critics == {
        *("steppo", "ppo", "vanilla-ppo", "turn-ppo", "vagen-base", "vagen-full", "webrl", "digirl", "awr")
    }
    groups = {name for name, recipe in RECIPES.items() if recipe.needs_groups}
    assert groups == {"grpo", "rloo", "reinforce++-baseline", "gigpo", "gspo"}
    without_reference = {name for name, recipe in RECIPES.items() if not recipe.needs_reference}
    assert without_reference == {"digirl", "awr", "filtered-bc", "sft"}


def test_recipes_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(RECIPES)) == RECIPES


STEPPO = RECIPES["steppo"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"credit": FunctionSpec("step_gea")},
            "recipe 'steppo': credit: 'step_gea' is unknown; .*'step_gae'",
        ),
        (
            {"credit": FunctionSpec("step_gae", {"gama": 0.9})},
            "credit: step_gae has no argument 'gama'; did you mean 'gamma'",
        ),
        ({"loss": FunctionSpec("ppo")}, "loss: 'ppo' is unknown"),
        (
            {"loss": FunctionSpec("sft_loss", {"beta": 1})},
            "loss: sft_loss has no argument 'beta'. Its arguments: none",
        ),
        ({"value": ValueChoice("mse", "state")}, "value.loss: 'mse' is unknown"),
        ({"value": ValueChoice("value_mse", "first")}, "value.sites: 'first' is unknown"),
        ({"value": ValueChoice("value_mse", "tokens")}, "value.sites: step_gae gives targets at 'state'"),
        ({"value": ValueChoice("value_bce", "state")}, r"value.loss: value_bce needs targets in \[0, 1\]"),
        ({"value": None}, "value: step_gae reads a critic that nothing trains"),
        ({"credit": FunctionSpec("grpo")}, "value: grpo gives the critic no targets"),
        (
            {"credit": FunctionSpec("grpo"), "value": None, "kl": KLChoice("k1", 0.1, "reward")},
            "kl.kl_in: grpo never reads",
        ),
        ({"credit": None, "value": None}, "credit: ppo_loss weights by advantages"),
        ({"kl": KLChoice("k9", 0.1, "loss")}, "kl.estimator: 'k9' is unknown"),
        ({"kl": KLChoice("k3", 0.1, "both")}, "kl.kl_in: 'both' is unknown"),
        ({"kl": KLChoice("k3", -0.1, "loss")}, "kl.coef: -0.1 must be"),
        ({"whiten": "batch"}, "whiten: 'batch' is unknown"),
        (
            {"credit": FunctionSpec("token_gae"), "value": ValueChoice("value_mse", "tokens")},
            "whiten: .*use 'tokens'",
        ),
        (
            {"credit": FunctionSpec("reinforce_pp"), "value": None, "whiten": "tokens"},
            "whiten: reinforce_pp whitens by itself",
        ),
        (
            {
                "credit": FunctionSpec("reinforce_pp", {"baseline": "group"}),
                "value": None,
                "whiten": None,
                "kl": KLChoice("k1", 0.1, "reward"),
            },
            "kl.kl_in: reinforce_pp never reads",
        ),
        ({"entropy_coef": -1.0}, "entropy_coef: -1.0 must be"),
    ],
)
def test_combinations_that_cannot_work_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(STEPPO, **change)


def test_other_combinations_are_legal() -> None:
    ablations = [
        replace(STEPPO, loss=RECIPES["ppo"].loss),  # without the step ratio
        replace(STEPPO, credit=RECIPES["ppo"].credit, value=RECIPES["ppo"].value, whiten="tokens"),
        replace(RECIPES["webrl"], loss=FunctionSpec("reinforce_loss")),  # without the KL constraint
        replace(RECIPES["webrl"], value=ValueChoice("value_mse", "state")),
        replace(
            RECIPES["turn-ppo"],
            credit=FunctionSpec("turn_gae", {"site": "end"}),
            value=ValueChoice("value_mse", "end"),
        ),
        replace(RECIPES["grpo"], whiten="steps", entropy_coef=0.01),
    ]
    assert len(ablations) == 6


@pytest.mark.parametrize(("kind", "functions"), [("credit", credit.CREDIT), ("loss", losses.LOSSES)])
def test_declarations_read_from_source_are_those_of_the_functions(
    kind: Kind, functions: Mapping[str, Callable[..., Any]]
) -> None:
    for name, function in functions.items():
        declared = find_declaration(kind, name)
        assert declared == getattr(function, "__stepwell_declaration__")  # noqa: B009
        assert declared.arguments == tuple(
            p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
        )
    assert list(functions) == list(CREDIT_MODULES if kind == "credit" else LOSS_MODULES)


def test_names_that_recipes_may_use_are_those_of_the_functions() -> None:
    assert tuple(losses.VALUE_LOSSES) == VALUE_LOSS_NAMES
    assert tuple(kl.ESTIMATORS) == KL_ESTIMATORS
