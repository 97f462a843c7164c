"""What a user might write: the good ones keep their contract, each of the others breaks one promise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepwell.agents import Field, Strategy, Tag
from stepwell.algos import RECIPES, CreditResult, LossInputs, Timeline
from stepwell.algos.declarations import FunctionSpec, credit, loss
from stepwell.rewards import StepOutcome, reward_part
from stepwell.workers.shards import Shard, shard_rule

# --- credit -----------------------------------------------------------------------------


@credit(compares_siblings=True)
def good_credit(tl: Timeline, *, scale: float = 1.0) -> CreditResult:
    labels = tl.read_group_labels()
    same = (labels[:, None] == labels[None, :]).to(tl.rewards.dtype)
    return CreditResult.of_trajectories(tl, scale * (tl.returns - same @ tl.returns / same.sum(1)))


@credit(reads="state")
def good_critic_credit(tl: Timeline) -> CreditResult:
    returns = tl.steps_by_trajectory.sum_discounted(tl.rewards, 1.0)
    return CreditResult.of_steps(tl, returns - tl.read_state_values(), targets=returns, sites=tl.state_sites)


def undeclared(tl: Timeline) -> CreditResult:
    return CreditResult.of_trajectories(tl, tl.returns)


@credit()
def secret_siblings(tl: Timeline) -> CreditResult:
    return good_credit(tl)


@credit(compares_siblings=True)
def no_siblings(tl: Timeline) -> CreditResult:
    return CreditResult.of_trajectories(tl, tl.returns)


@credit()
def wrong_type(tl: Timeline) -> Tensor:
    return tl.returns


@credit()
def wrong_shape(tl: Timeline) -> CreditResult:
    return CreditResult(tl, tl.returns)


@credit()
def infinite(tl: Timeline) -> CreditResult:
    return CreditResult.of_trajectories(tl, 1.0 / (tl.returns - tl.returns[1]))


@credit()
def secret_critic(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards - tl.read_state_values())


@credit(reads="state")
def no_targets(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards - tl.read_state_values())


@credit(reads="state")
def wrong_sites(tl: Timeline) -> CreditResult:
    values = tl.read_state_values()
    return CreditResult.of_steps(tl, tl.rewards - values, targets=values, sites=tl.end_sites)


@credit(reads="state", targets="outcomes")
def targets_above_one(tl: Timeline) -> CreditResult:
    values = tl.read_state_values()
    return CreditResult.of_steps(tl, tl.rewards - values, targets=values + 1, sites=tl.state_sites)


@credit()
def differs_inside_a_step(tl: Timeline) -> CreditResult:
    return CreditResult(tl, tl.steps_to_tokens(tl.rewards) * tl.tokens_by_step.position)


@credit()
def reads_penalties(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards + tl.tokens_by_step.sum(tl.read_token_rewards()))


@credit(reads_token_rewards=True)
def reads_no_penalties(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards)


@credit(whitens=True, level="token")
def not_white(tl: Timeline) -> CreditResult:
    return CreditResult(tl, tl.steps_to_tokens(tl.rewards))


@credit()
def constant(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, torch.ones_like(tl.rewards))


@credit()
def wrong_keep(tl: Timeline) -> CreditResult:
    return replace(CreditResult.of_steps(tl, tl.rewards), keep=tl.rewards > 2.0, step_advantages=tl.rewards)


@credit()
def random_credit(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards * torch.rand(tl.num_steps))


@credit()
def in_place(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards.mul_(1.5))


@credit()
def first_is_best(tl: Timeline) -> CreditResult:
    return CreditResult.of_trajectories(tl, tl.returns - torch.arange(tl.num_trajectories))


@credit()
def float_only(tl: Timeline) -> CreditResult:
    return CreditResult.of_steps(tl, tl.rewards.float())


# --- losses -----------------------------------------------------------------------------


@loss(needs=("advantages", "reference"))
def good_loss(inputs: LossInputs, *, beta: float = 0.1) -> tuple[Tensor, dict[str, Tensor]]:
    weights = inputs.reduction.token_weights("step_mean")
    terms = (
        beta * (inputs.policy_logprobs - inputs.read_reference()).square()
        - inputs.read_advantages() * inputs.policy_logprobs
    )
    value = weights @ terms
    return value, {"terms": value.detach()}


@loss()
def returns_a_number(inputs: LossInputs) -> Tensor:
    return inputs.policy_logprobs.mean()


@loss()
def not_reduced(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -inputs.policy_logprobs, {}


@loss()
def not_finite(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return inputs.policy_logprobs.sum().log(), {}


@loss()
def live_metric(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    value = -inputs.reduction.token_weights("token_mean") @ inputs.policy_logprobs
    return value, {"value": value}


@loss()
def detached(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -inputs.policy_logprobs.detach().mean(), {}


@loss(needs=("advantages",))
def leaks(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    assert inputs.advantages is not None
    return -inputs.reduction.token_weights("token_mean") @ (inputs.advantages * inputs.policy_logprobs), {}


@loss()
def secret_reference(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return (inputs.policy_logprobs - inputs.read_reference()).square().mean(), {}


@loss(needs=("reference",))
def useless_reference(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -inputs.reduction.token_weights("token_mean") @ inputs.policy_logprobs, {}


@loss()
def ignores_the_mask(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -inputs.policy_logprobs.mean(), {}


@loss()
def random_loss(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    weights = inputs.reduction.token_weights("token_mean")
    return -(weights * torch.rand(len(weights))) @ inputs.policy_logprobs, {}


@loss()
def single_precision(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    return -(inputs.reduction.token_weights("token_mean") @ inputs.policy_logprobs).float(), {}


# --- recipes ----------------------------------------------------------------------------

GOOD_RECIPE = replace(
    RECIPES["grpo"],
    name="good",
    credit=FunctionSpec.of(good_credit, scale=2.0),
    loss=FunctionSpec.of(good_loss),
)
BAD_RECIPE = replace(RECIPES["grpo"], name="bad", credit=FunctionSpec.of(secret_siblings))

# --- rewards ----------------------------------------------------------------------------


@reward_part
def good_reward(step: StepOutcome) -> float:
    return -0.01 * len(step.text)


def plain_reward(step: StepOutcome) -> float:
    return float(step.success)


@reward_part
def needs_actions(step: StepOutcome) -> float:
    return float(len(step.actions[0]))


@reward_part
def sometimes_nan(step: StepOutcome) -> float:
    return float("nan") if step.is_last else 0.0


@reward_part
def random_reward(step: StepOutcome) -> float:
    return random.random()


# --- prompt styles ----------------------------------------------------------------------

GOOD_STYLE = Strategy(
    "plan_first",
    (Tag("plan", Field.REASONING), Tag("answer", Field.ANSWER)),
    instruction="<plan> is one short sentence.",
)


class SilentStyle(Strategy):
    """Says nothing of its form, and reads nothing back."""

    @property
    def skeleton(self) -> str:
        return "as you like"


BAD_STYLE = SilentStyle("silent", GOOD_STYLE.tags)

# --- shard rules ------------------------------------------------------------------------


@shard_rule
def good_shard(requests: Sequence[Any], loads: Sequence[Any]) -> list[Shard]:
    return [Shard((number,), number % len(loads)) for number in range(len(requests))]


@shard_rule
def loses_the_last(requests: Sequence[Any], loads: Sequence[Any]) -> list[Shard]:
    return [Shard(tuple(range(max(1, len(requests) - 1))))]


@shard_rule
def lists_of_requests(requests: Sequence[Any], loads: Sequence[Any]) -> Any:
    return [list(requests)]


@shard_rule
def random_shard(requests: Sequence[Any], loads: Sequence[Any]) -> list[Shard]:
    return [Shard((number,), random.randrange(len(loads))) for number in range(len(requests))]
