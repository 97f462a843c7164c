"""The objective of a recipe is what the library's functions give when called one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.training.made import sampled

from stepwell.algos import LossInputs, credit, losses
from stepwell.algos.kl import k1, k3, kl_loss, kl_reward
from stepwell.algos.recipes import RECIPES, KLChoice, Recipe
from stepwell.core import InputError, Trajectory
from stepwell.packing import Outputs
from stepwell.training import TrajectoryMinibatch
from stepwell.training.objective import Objective

CPU = torch.device("cpu")


def outputs_of(batch: TrajectoryMinibatch, seed: int = 0) -> Outputs:
    """Made-up outputs near the behaviour, as leaves."""
    draw = torch.Generator().manual_seed(seed)
    behavior = batch.behavior_logprobs
    assert behavior is not None
    count = batch.num_step_values + len(batch._final_states)
    return Outputs(
        (behavior + 0.3 * torch.randn(len(behavior), generator=draw)).requires_grad_(),
        torch.randn(count, generator=draw).requires_grad_(),
        torch.rand(len(behavior), generator=draw).requires_grad_(),
    )


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return sampled()[1]


@pytest.fixture
def batch(trajectories: list[Trajectory]) -> TrajectoryMinibatch:
    return TrajectoryMinibatch(trajectories, CPU)


def reference_of(batch: TrajectoryMinibatch) -> torch.Tensor:
    draw = torch.Generator().manual_seed(9)
    assert batch.behavior_logprobs is not None
    return batch.behavior_logprobs + 0.2 * torch.randn(len(batch.behavior_logprobs), generator=draw)


def with_values(batch: TrajectoryMinibatch, values: torch.Tensor) -> dict[str, torch.Tensor]:
    """V before tokens, after actions, and of first states, picked out by counting."""
    before, ends, firsts, place = [], [], [], 0
    for trajectory in batch.trajectories:
        for i, step in enumerate(trajectory.steps):
            if i == 0:
                firsts.append(values[place])
            before.append(values[place : place + step.num_units])
            ends.append(values[place + step.num_units])
            place += step.num_units + 1
    return {
        "token_values": torch.cat(before),
        "end_values": torch.stack(ends),
        "instruction_values": torch.stack(firsts),
    }


def gradients(loss: torch.Tensor, outputs: Outputs) -> list[torch.Tensor]:
    grads = torch.autograd.grad(loss, outputs.list_present(), allow_unused=True, materialize_grads=True)
    return list(grads)


def test_steppo_is_step_gae_whitened_clipped_per_step_and_held_by_kl(batch: TrajectoryMinibatch) -> None:
    recipe = replace(RECIPES["steppo"], entropy_coef=0.01)
    outputs, ref = outputs_of(batch), reference_of(batch)
    loss, metrics = Objective(recipe, batch, ref)(outputs)

    assert outputs.logprobs is not None and outputs.values is not None and outputs.entropies is not None
    timeline = replace(batch.timeline, **with_values(batch, outputs.values.detach()))
    result = credit.step_gae(timeline, gamma=0.99, lam=1.0)
    inputs = LossInputs(
        timeline, outputs.logprobs, batch.behavior_logprobs, result.whiten_advantages("steps").advantages
    )
    policy, told = losses.ppo_loss(inputs, ratio="step", aggregate="step_mean")
    value, _ = losses.value_mse(outputs.values[result.value_index], result.value_targets)
    held, _ = kl_loss(k3(outputs.logprobs, ref), timeline, coef=0.001, aggregate="step_mean")
    bonus, _ = losses.entropy_bonus(outputs.entropies, timeline, aggregate="step_mean")
    expected = policy + 0.5 * value + held + 0.01 * bonus
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, outputs), gradients(expected, outputs))
    torch.testing.assert_close(metrics["loss/policy"], policy.detach())
    torch.testing.assert_close(metrics["loss/value"], value.detach())
    torch.testing.assert_close(metrics["ratio"], told["ratio_mean"])
    torch.testing.assert_close(metrics["clip_share"], told["clip_fraction"])
    torch.testing.assert_close(metrics["entropy"], -bonus.detach())
    assert not torch.allclose(bonus, -outputs.entropies.mean())  # each step counts once, as in the loss
    spread = (result.value_targets - outputs.values[result.value_index]).var(unbiased=False)  # type: ignore[operator]
    explained = 1 - spread / result.value_targets.var(unbiased=False)  # type: ignore[union-attr]
    torch.testing.assert_close(metrics["explained_variance"], explained.detach())


def test_ppo_with_the_kl_in_the_reward_credits_tokens_for_staying_near(batch: TrajectoryMinibatch) -> None:
    recipe = replace(RECIPES["ppo"], kl=KLChoice("k1", 0.5, "reward"))
    outputs, ref = outputs_of(batch), reference_of(batch)
    loss, metrics = Objective(recipe, batch, ref)(outputs)

    assert outputs.logprobs is not None and outputs.values is not None
    estimates = k1(outputs.logprobs.detach(), ref)
    timeline = replace(
        batch.timeline,
        token_rewards=kl_reward(estimates, coef=0.5),
        **with_values(batch, outputs.values.detach()),
    )
    result = credit.token_gae(timeline, gamma=0.99, lam=1.0, reward_at="step_end")
    inputs = LossInputs(
        timeline, outputs.logprobs, batch.behavior_logprobs, result.whiten_advantages("tokens").advantages
    )
    policy, _ = losses.ppo_loss(inputs)
    value, _ = losses.value_mse(outputs.values[result.value_index], result.value_targets)
    torch.testing.assert_close(loss, policy + 0.5 * value)
    torch.testing.assert_close(gradients(loss, outputs), gradients(policy + 0.5 * value, outputs))
    torch.testing.assert_close(metrics["kl"], estimates.mean())


def test_grpo_compares_siblings_and_needs_no_critic(batch: TrajectoryMinibatch) -> None:
    outputs, ref = outputs_of(batch), reference_of(batch)
    outputs = Outputs(outputs.logprobs, None, None)
    loss, metrics = Objective(RECIPES["grpo"], batch, ref)(outputs)

    assert outputs.logprobs is not None
    result = credit.grpo(batch.timeline)
    assert float(result.advantages.abs().max()) > 0.1
    inputs = LossInputs(batch.timeline, outputs.logprobs, batch.behavior_logprobs, result.advantages)
    policy, _ = losses.ppo_loss(inputs, aggregate="trajectory_mean")
    held, _ = kl_loss(k3(outputs.logprobs, ref), batch.timeline, coef=0.001, aggregate="trajectory_mean")
    torch.testing.assert_close(loss, policy + held)
    torch.testing.assert_close(gradients(loss, outputs), gradients(policy + held, outputs))
    assert "loss/value" not in metrics and "entropy" not in metrics


def test_webrl_reads_its_critic_as_probabilities_and_trains_it_by_cross_entropy(
    trajectories: list[Trajectory],
) -> None:
    recipe = RECIPES["webrl"]
    batch = TrajectoryMinibatch(_with_outcomes(trajectories), CPU)
    outputs, ref = outputs_of(batch), reference_of(batch)
    loss, _ = Objective(recipe, batch, ref)(outputs)

    assert outputs.logprobs is not None and outputs.values is not None
    timeline = replace(batch.timeline, **with_values(batch, outputs.values.detach().sigmoid()))
    result = credit.webrl_advantage(timeline, gamma=0.9, lam=0.5)
    inputs = LossInputs(
        timeline, outputs.logprobs, batch.behavior_logprobs, result.advantages, ref_logprobs=ref
    )
    policy, _ = losses.webrl_loss(inputs, beta=1.0)
    logits = outputs.values[result.value_index]
    value, _ = losses.value_bce(logits, result.value_targets, from_logits=True)
    torch.testing.assert_close(loss, policy + 0.5 * value)
    torch.testing.assert_close(gradients(loss, outputs), gradients(policy + 0.5 * value, outputs))


@pytest.mark.parametrize("name", ["webrl", "awr"])
def test_a_loss_over_steps_has_an_entropy_bonus_over_steps(trajectories: list[Trajectory], name: str) -> None:
    batch = TrajectoryMinibatch(_with_outcomes(trajectories), CPU)
    outputs, ref = outputs_of(batch), reference_of(batch)
    plain, _ = Objective(RECIPES[name], batch, ref)(outputs)
    loss, _ = Objective(replace(RECIPES[name], entropy_coef=0.5), batch, ref)(outputs)

    assert outputs.entropies is not None
    bonus, _ = losses.entropy_bonus(outputs.entropies, batch.timeline, aggregate="step_mean")
    assert not torch.allclose(bonus, -outputs.entropies.mean())  # steps differ in their numbers of tokens
    torch.testing.assert_close(loss - plain, 0.5 * bonus)


def test_digirl_takes_its_horizon_from_the_env_and_imitates_only_the_best_steps(
    trajectories: list[Trajectory],
) -> None:
    batch = TrajectoryMinibatch(_with_outcomes(trajectories), CPU)
    outputs, expected = outputs_of(batch), torch.full((len(trajectories),), 0.3)
    expected[0] = 0.9
    loss, _ = Objective(RECIPES["digirl"], batch, horizon=2, instruction_values=expected)(outputs)

    assert outputs.logprobs is not None and outputs.values is not None
    values = with_values(batch, outputs.values.detach().sigmoid()) | {"instruction_values": expected}
    timeline = replace(batch.timeline, **values)
    result = credit.digirl_advantage(timeline, lam=0.5, keep_top=0.1, horizon=2)
    inputs = LossInputs(timeline, outputs.logprobs, loss_mask=result.loss_mask)
    policy, _ = losses.sft_loss(inputs)
    value, _ = losses.value_bce(outputs.values[result.value_index], result.value_targets, from_logits=True)
    torch.testing.assert_close(loss, policy + 0.5 * value)
    (grad,) = torch.autograd.grad(loss, [outputs.logprobs])
    assert result.loss_mask is not None
    assert 0 < int(result.loss_mask.sum()) < len(result.loss_mask)
    assert torch.equal(grad != 0, result.loss_mask)


@pytest.mark.parametrize("name", ["steppo", "ppo", "vagen-base", "turn-ppo"])
def test_credit_is_that_of_the_first_pass_in_every_later_one(batch: TrajectoryMinibatch, name: str) -> None:
    recipe = RECIPES[name]
    objective = Objective(recipe, batch, reference_of(batch))
    _, first = objective(outputs_of(batch, 0))
    kept = objective._credit
    _, second = objective(outputs_of(batch, 1))
    assert objective._credit is kept
    assert "parity/max" in first and "explained_variance" in first
    assert "parity/max" not in second and "explained_variance" not in second
    fresh, _ = Objective(recipe, batch, reference_of(batch))(outputs_of(batch, 1))
    assert not torch.allclose(second["loss"], fresh)


def test_parity_tells_the_largest_gap_to_the_engine_and_their_mean(batch: TrajectoryMinibatch) -> None:
    outputs = outputs_of(batch)
    objective = Objective(_plain(), batch)
    _, metrics = objective(outputs)
    assert outputs.logprobs is not None and batch.behavior_logprobs is not None
    gaps = (outputs.logprobs.detach() - batch.behavior_logprobs).abs()
    torch.testing.assert_close(metrics["parity/max"], gaps.max())
    torch.testing.assert_close(metrics["parity/mean"], gaps.mean())
    assert objective.gaps is not None
    assert objective.gaps.engine_logprob == batch.behavior_logprobs[gaps.argmax()]


def test_a_clipped_value_loss_holds_values_near_those_of_the_first_pass(batch: TrajectoryMinibatch) -> None:
    recipe = replace(RECIPES["steppo"], kl=None)
    objective = Objective(recipe, batch, value_clip=0.1)
    first = outputs_of(batch, 0)
    objective(first)
    second = outputs_of(batch, 1)
    _, metrics = objective(second)
    assert objective._credit is not None and first.values is not None and second.values is not None
    index = objective._credit.value_index
    expected, _ = losses.value_mse(
        second.values[index],
        objective._credit.value_targets,
        clip=0.1,
        old_values=first.values[index].detach(),
    )
    torch.testing.assert_close(metrics["loss/value"], expected.detach())


def _plain() -> Recipe:
    return replace(RECIPES["rloo"], kl=None)


def _with_outcomes(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The same episodes rewarded by 1 at the end of every other one, else 0."""
    import copy

    changed = copy.deepcopy(trajectories)
    for i, trajectory in enumerate(changed):
        for step in trajectory.steps:
            step.assign_reward({"outcome": float(step is trajectory.steps[-1] and i % 2 == 0)})
    return changed


def test_policy_and_critic_learn_from_named_steps_of_replayed_trajectories(
    trajectories: list[Trajectory],
) -> None:
    replayed = trajectories[0]
    masks = {replayed.id: [i > 0 for i in range(len(replayed.steps))]}
    batch = TrajectoryMinibatch(trajectories, CPU, trained_steps=masks)
    outputs, ref = outputs_of(batch), reference_of(batch)
    loss, _ = Objective(replace(RECIPES["steppo"], entropy_coef=0.01), batch, ref)(outputs)
    policy, values, entropies = gradients(loss, outputs)
    left_out = replayed.steps[0].num_units
    assert not policy[:left_out].any() and not entropies[:left_out].any()
    assert policy[left_out:].any() and entropies[left_out:].all()
    assert not values[: left_out + 1].any() and values[left_out + 1 :].any()
    whole, _ = Objective(RECIPES["steppo"], TrajectoryMinibatch(trajectories, CPU), ref)(outputs)
    assert gradients(whole, outputs)[0][:left_out].any()


def test_a_critic_that_replay_does_not_teach_learns_from_the_other_trajectories(
    trajectories: list[Trajectory],
) -> None:
    replayed = trajectories[0]
    masks = {replayed.id: [True] * len(replayed.steps)}
    batch = TrajectoryMinibatch(trajectories, CPU, trained_steps=masks, replay_teaches_critic=False)
    outputs, ref = outputs_of(batch), reference_of(batch)
    loss, _ = Objective(RECIPES["steppo"], batch, ref)(outputs)
    policy, values, _ = gradients(loss, outputs)
    num_values = sum(step.num_units + 1 for step in replayed.steps)
    assert policy[: replayed.steps[0].num_units].any()
    assert not values[:num_values].any() and values[num_values:].any()
    alone = TrajectoryMinibatch([replayed], CPU, trained_steps=masks, replay_teaches_critic=False)
    outputs = outputs_of(alone)
    loss, metrics = Objective(RECIPES["steppo"], alone, reference_of(alone))(outputs)
    assert "loss/value" not in metrics and torch.isfinite(loss)


def test_a_mask_of_another_length_is_refused(trajectories: list[Trajectory]) -> None:
    batch = TrajectoryMinibatch(trajectories, CPU, trained_steps={trajectories[0].id: [True] * 99})
    with pytest.raises(InputError, match="its mask 99"):
        _ = batch.keep
