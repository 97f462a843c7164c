"""The critics of a recipe: which ones it needs, what they are taught, and by which loss.

    prepare_critics         link and number of critics, as the recipe wants them
    restart_critic          after a warm start that did not teach it
    check_frozen_start      whether the critic can be taught alone at first
    compute_critic_targets  what a warm start teaches the critic
    compute_critic_loss     squared error or cross-entropy, as the link says
    teach_critic            passes that teach it before the policy reads its values (`train.critic_epochs`)
    read_instruction_values, teach_instructions     DigiRL's second critic

A warm start teaches what the recipe will read: at the same sites, with the same discount, towards the same
targets. The recipe's own credit function gives them, called with values of 0 and every λ at 1, which leaves
plain returns. A recipe that reads no critic may still have one (a study whose rows start alike); it is
then taught returns of states with γ = 0.99.

The critic of instructions reads the first state of a trajectory, which holds the instruction, and is taught
how the trajectory ended. It has a head of its own, and a backbone of its own where the critic has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepwell.algos import Timeline
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import FunctionSpec, find_declaration, load_function
from stepwell.algos.losses import value_bce, value_mse
from stepwell.algos.recipes import Recipe
from stepwell.config.training import TrainConfig
from stepwell.core import ConfigError
from stepwell.packing import Outputs, backward
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.critic import CriticLink, CriticModel
from stepwell.policies.forward import find_backbone
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.objective_parts import ObjectivePart
from stepwell.training.policy import Policy

_RETURNS = FunctionSpec("step_gae", {"gamma": 0.99})


def prepare_critics(policy: Policy, recipe: Recipe) -> None:
    """Give the policy's critics the link that the recipe trains, and add that of instructions if needed."""
    if recipe.value is None:
        return
    if policy.critic is None:
        raise ConfigError(f"recipe {recipe.name} needs a critic; set policy.critic to 'shared' or 'own'")
    policy.critic.choose_link(recipe.value.link)
    if recipe.needs_instruction_critic:
        policy.add_instruction_critic()
        policy.instruction_critic.choose_link(recipe.value.link)


def restart_critic(policy: Policy) -> None:
    """Let a language model's own critic begin with the actor's present backbone: it reads what that reads."""
    backbone = getattr(policy.critic, "backbone", None)
    if isinstance(policy, CausalLMPolicy) and backbone is not None and policy.adapters is None:
        backbone.load_state_dict(find_backbone(policy.model).state_dict())


def compute_critic_targets(recipe: Recipe | None, timeline: Timeline) -> CreditResult:
    """The critic's sites and targets in demonstrations, as this recipe will read it."""
    reads_critic = recipe is not None and recipe.value is not None
    spec = recipe.credit if recipe is not None and reads_critic else _RETURNS
    assert spec is not None
    arguments = find_declaration("credit", spec.name).arguments
    whole_returns = {name: 1.0 for name in arguments if name == "lam" or name.startswith("lam_")}
    ignorant = replace(
        timeline,
        token_values=timeline.rewards.new_zeros(timeline.num_tokens),
        end_values=torch.zeros_like(timeline.rewards),
        instruction_values=timeline.rewards.new_zeros(timeline.num_trajectories),
    )
    result: CreditResult = load_function("credit", spec.name)(ignorant, **{**spec.kwargs, **whole_returns})
    return result


def compute_critic_loss(
    link: CriticLink | None,
    outputs: Tensor,
    targets: Tensor,
    *,
    clip: float | None = None,
    old_values: Tensor | None = None,
    num_sites: int | None = None,
) -> Tensor:
    """The loss of a critic's outputs [site] against targets. `clip` holds values near `old_values`.

    The mean is over `num_sites`, where these are a part of them.
    """
    if link == "logit":
        return value_bce(outputs, targets, from_logits=True, num_sites=num_sites)[0]
    if clip is None:
        return value_mse(outputs, targets, num_sites=num_sites)[0]
    return value_mse(outputs, targets, clip=clip, old_values=old_values, num_sites=num_sites)[0]


def read_instruction_values(policy: Policy, minibatch: TrajectoryMinibatch) -> Tensor:
    """[trajectory]: what the critic of instructions expects."""
    with torch.no_grad():
        return torch.cat(policy.read_instructions().values(minibatch.first_states)).float()


def teach_instructions(
    policy: Policy, minibatch: TrajectoryMinibatch, targets: Tensor, *, coef: float
) -> dict[str, Tensor]:
    """Add the gradient of the critic of instructions; `targets` [trajectory] are outcomes."""

    def compute_loss(outputs: Outputs) -> tuple[Tensor, dict[str, Any]]:
        assert outputs.values is not None
        loss = compute_critic_loss(policy.instruction_critic.link, outputs.values, targets)
        return coef * loss, {"loss/instruction_value": loss.detach()}

    reader = policy.read_instructions()
    _, metrics, _ = backward(reader, minibatch.first_states, compute_loss, logprobs=False, values=True)
    return metrics


def teach_critic(policy: Any, optimizer: Any, objectives: Sequence[Any], config: TrainConfig) -> None:
    """Teach the critic alone: `critic_epochs` passes over a rollout whose objectives know their targets."""
    for objective in [*objectives] * config.critic_epochs:

        def compute_loss(outputs: Any, objective: Any = objective) -> tuple[Tensor, dict[str, Any]]:
            loss, metrics = objective.compute_value_loss(outputs, ObjectivePart(objective.timeline))
            return 0.0 * outputs.values.sum() if loss is None else loss, metrics

        optimizer.zero_grad()
        backward(policy, objective.minibatch.packed, compute_loss, logprobs=False, values=True)
        optimizer.clip_gradients(config.optimizer.grad_clip)
        optimizer.step(moves_actor=False)


def check_frozen_start(policy: Policy, recipe: Recipe, config: TrainConfig) -> None:
    """A critic on the actor's backbone cannot be taught alone."""
    if not ((config.critic_only_updates or config.critic_epochs) and recipe.needs_critic):
        return
    if not (isinstance(policy.critic, CriticModel) and policy.critic.backbone is not None):
        raise ConfigError(
            "train.critic_only_updates and train.critic_epochs need a critic with a backbone of its own, so "
            "that the policy stays as it is; set policy.critic to 'own', or both to 0"
        )
