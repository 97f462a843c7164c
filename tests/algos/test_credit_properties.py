"""What must hold for every batch: textbook recursions, permutations, independence, special cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algos.credit_batches import (
    ALL,
    ALONE,
    GROUPED,
    Trajectory,
    assert_nested,
    batches,
    number,
    recursion,
    timeline_of,
    trajectories,
)
from tests.properties import examples

from stepwell.algos import CreditResult, Timeline, credit

# Permuting and mixing batches


@pytest.mark.parametrize("name", list(ALL))
@settings(max_examples=examples(15))
@given(batch=batches, seed=st.integers(0, 99))
def test_permuting_trajectories_permutes_results(name: str, batch: list[Trajectory], seed: int) -> None:
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed)).tolist()
    kwargs = {"normalize_std": False} if name in ("grpo", "gigpo") else ALL[name]
    result = credit.CREDIT[name](timeline_of(batch), **kwargs)
    permuted = credit.CREDIT[name](timeline_of([batch[j] for j in order]), **kwargs)
    assert_nested(permuted, [result.to_lists()[j] for j in order])


@pytest.mark.parametrize("name", ALONE)
@given(batch=batches)
def test_batch_composition_changes_no_bit_of_a_trajectorys_credit(name: str, batch: list[Trajectory]) -> None:
    function: Callable[..., CreditResult] = credit.CREDIT[name]
    together = function(timeline_of(batch, torch.float32), **ALL[name]).to_lists()
    apart = [function(timeline_of([x], torch.float32), **ALL[name]).to_lists()[0] for x in batch]
    assert together == apart


@pytest.mark.parametrize("name", GROUPED)
@given(batch=batches)
def test_other_groups_change_no_bit_of_a_groups_credit(name: str, batch: list[Trajectory]) -> None:
    together = credit.CREDIT[name](timeline_of(batch)).to_lists()
    for group in {x.group for x in batch}:
        members = [j for j, x in enumerate(batch) if x.group == group]
        alone = credit.CREDIT[name](timeline_of([batch[j] for j in members])).to_lists()
        assert alone == [together[j] for j in members]


# Groups, turns, targets


@given(st.floats(-1e3, 1e3, width=32), st.integers(1, 6))
def test_group_of_equal_returns_gets_zero_advantage(value: float, size: int) -> None:
    for dtype in (torch.float32, torch.float64):
        timeline = Timeline.from_lists(
            rewards=[[value]] * size, groups=["task"] * size, anchors=[["start"]] * size, dtype=dtype
        )
        for name in GROUPED:
            assert credit.CREDIT[name](timeline).advantages.tolist() == [0.0] * size


@given(trajectories())
def test_a_group_of_one_gets_zero_advantage(x: Trajectory) -> None:
    for name in ("grpo", "rloo"):
        assert not credit.CREDIT[name](timeline_of([x])).advantages.any()


@given(batches)
def test_turns_of_zero_reward_keep_their_boundary(batch: list[Trajectory]) -> None:
    # A turn's reward of 0 must give the limit of small rewards, not a merged turn.
    silent = [Trajectory(**{**vars(x), "rewards": [0.0] * len(x.rewards)}) for x in batch]
    almost = [Trajectory(**{**vars(x), "rewards": [1e-12] * len(x.rewards)}) for x in batch]
    for name in ("bilevel_gae", "turn_gae", "step_gae", "token_gae"):
        expected = credit.CREDIT[name](timeline_of(almost), **ALL[name]).to_lists()
        assert_nested(credit.CREDIT[name](timeline_of(silent), **ALL[name]), expected)


@given(batches)
def test_gae_targets_are_advantage_plus_value(batch: list[Trajectory]) -> None:
    timeline = timeline_of(batch)
    assert timeline.token_values is not None and timeline.end_values is not None
    values = torch.cat(  # L_t + 1 values per step, as a policy returns them
        [
            torch.tensor([*action, end], dtype=torch.float64)
            for x in batch
            for action, end in zip(x.token_values, x.end_values, strict=True)
        ]
    )
    for name in ("token_gae", "step_gae", "turn_gae", "bilevel_gae"):
        result = credit.CREDIT[name](timeline, **ALL[name])
        parts = [] if name in ("step_gae", "turn_gae") else [result.advantages]
        parts += [] if result.step_advantages is None else [result.step_advantages]
        torch.testing.assert_close(result.value_targets, torch.cat(parts) + values[result.value_index])


# Special cases that must agree


@given(batches)
def test_step_gae_of_one_token_actions_equals_token_gae(batch: list[Trajectory]) -> None:
    for x in batch:
        x.token_values = [action[:1] for action in x.token_values]
        x.token_rewards = [action[:1] for action in x.token_rewards]
    timeline = timeline_of(batch)
    steps = credit.step_gae(timeline, gamma=0.9, lam=0.8)
    tokens = credit.token_gae(timeline, gamma=0.9, lam=0.8, reward_at="step_end")
    torch.testing.assert_close(steps.advantages, tokens.advantages)
    torch.testing.assert_close(steps.value_targets, tokens.value_targets)
    assert torch.equal(steps.value_index, tokens.value_index)


@given(batches)
def test_step_gae_without_token_rewards_equals_turn_gae_at_the_state(batch: list[Trajectory]) -> None:
    for x in batch:
        x.token_rewards = [[0.0] * len(action) for action in x.token_rewards]
    timeline = timeline_of(batch)
    torch.testing.assert_close(
        credit.step_gae(timeline).advantages, credit.turn_gae(timeline, site="state").advantages
    )


@given(batches)
def test_bilevel_with_all_ones_telescopes(batch: list[Trajectory]) -> None:
    # With γ = λ = 1: A_{t,i} = Σ k from i on + u_t − v_{t,i} + (Σ_{s≥t} r_s + boot − u_t).
    expected = [
        [
            [sum(penalties[i:]) - values[i] + sum(x.rewards[t:]) + x.bootstrap for i in range(len(values))]
            for t, (values, penalties) in enumerate(zip(x.token_values, x.token_rewards, strict=True))
        ]
        for x in batch
    ]
    timeline = timeline_of(batch)
    result = credit.bilevel_gae(timeline, gamma_turn=1.0, lam_turn=1.0, gamma_token=1.0, lam_token=1.0)
    assert_nested(result, expected)


@given(batches)
def test_token_gae_with_all_ones_is_return_minus_value(batch: list[Trajectory]) -> None:
    for x in batch:
        x.token_rewards = [[0.0] * len(action) for action in x.token_rewards]
    expected = [
        [[sum(x.rewards) + x.bootstrap - v for v in action] for action in x.token_values] for x in batch
    ]
    assert_nested(credit.token_gae(timeline_of(batch), gamma=1.0, lam=1.0), expected)


@given(batches)
def test_gigpo_without_step_weight_equals_grpo(batch: list[Trajectory]) -> None:
    timeline = timeline_of(batch)
    assert torch.equal(credit.gigpo(timeline, omega=0.0).advantages, credit.grpo(timeline).advantages)


@given(batches)
def test_mc_advantage_is_webrl_advantage_without_its_one_step_half(batch: list[Trajectory]) -> None:
    timeline = timeline_of(batch)
    webrl = credit.webrl_advantage(timeline, lam=0.0)
    assert torch.equal(credit.mc_advantage(timeline).advantages, webrl.advantages)


@given(batches)
def test_rloo_is_the_group_difference_scaled(batch: list[Trajectory]) -> None:
    for x in batch:
        x.group = 0
    timeline, n = timeline_of(batch), len(batch)
    plain = credit.grpo(timeline, normalize_std=False).advantages
    scale = n / (n - 1) if n > 1 else 1.0
    torch.testing.assert_close(credit.rloo(timeline).advantages, plain * scale)


# The clock of the discount

fraction = st.floats(0.05, 1.0)
step_rewards = st.lists(st.lists(number, min_size=1, max_size=6), min_size=1, max_size=3)


@given(step_rewards, st.integers(1, 30), fraction, fraction)
def test_by_the_clock_of_steps_crossing_a_step_costs_gamma_however_long_it_is(
    rewards: list[list[float]], length: int, gamma: float, lam: float
) -> None:
    lengths = [[length] * len(steps) for steps in rewards]
    blank = [[[0.0] * length for _ in steps] for steps in rewards]
    timeline = Timeline.from_lists(rewards, blank, tokens_per_step=lengths, dtype=torch.float64)
    by_token = credit.token_gae(timeline, gamma=gamma, lam=lam, reward_at="step_end", clock="step")
    by_step = credit.step_gae(timeline, gamma=gamma, lam=lam)
    assert by_step.step_advantages is not None
    ends = by_token.advantages[timeline.tokens_by_step.last]
    torch.testing.assert_close(ends, by_step.step_advantages, atol=1e-9, rtol=1e-9)
    starts = by_token.advantages[timeline.tokens_by_step.first]
    within = (gamma * lam) ** ((length - 1) / length)
    torch.testing.assert_close(starts, ends * within, atol=1e-9, rtol=1e-9)


@given(batches, fraction, fraction)
def test_the_clock_of_steps_is_the_root_of_the_discount_by_the_mean_length(
    batch: list[Trajectory], gamma: float, lam: float
) -> None:
    lengths = [len(action) for x in batch for action in x.token_values]
    root = len(lengths) / sum(lengths)
    by_step = credit.token_gae(timeline_of(batch), gamma=gamma, lam=lam, clock="step")
    by_token = credit.token_gae(timeline_of(batch), gamma=gamma**root, lam=lam**root)
    torch.testing.assert_close(by_step.advantages, by_token.advantages)


# Whitening


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40), st.data())
def test_whitened_numbers_have_mean_zero_and_deviation_one(numbers: list[float], data: st.DataObject) -> None:
    x = torch.tensor(numbers, dtype=torch.float64)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x))))
    if not mask.any():
        mask[0] = True
    white = credit.whiten(x, mask)
    assert not white[~mask].any()
    assert white[mask].mean().item() == pytest.approx(0.0, abs=1e-6)
    if x[mask].std(correction=0) > 1e-2:
        assert white[mask].std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_whitening_equal_numbers_gives_exact_zeros() -> None:
    # The mean of a hundred thousand float32 0.1s is not 0.1: only the shift makes this zero.
    assert not credit.whiten(torch.full((100_000,), 0.1)).any()


@given(batches)
def test_reinforce_pp_is_the_whitened_return_to_go(batch: list[Trajectory]) -> None:
    timeline = timeline_of(batch)
    returns: list[float] = []
    for x in batch:
        rewards = [k for action in x.token_rewards for k in action]
        end = -1
        for action, reward in zip(x.token_rewards, x.rewards, strict=True):
            end += len(action)
            rewards[end] += reward
        returns += recursion(rewards, [0.0] * len(rewards), 0.0, 0.9, 1.0)
    expected = credit.whiten(torch.tensor(returns, dtype=torch.float64))
    if torch.tensor(returns).std(correction=0) > 1e-4:
        torch.testing.assert_close(credit.reinforce_pp(timeline, gamma=0.9).advantages, expected)


@pytest.mark.parametrize("name", list(ALL))
def test_credit_carries_no_gradient(name: str) -> None:
    timeline = Timeline(
        steps_per_trajectory=torch.tensor([1, 1]),
        tokens_per_step=torch.tensor([2, 1]),
        rewards=torch.tensor([1.0, 2.0], requires_grad=True),
        token_values=torch.zeros(3, requires_grad=True),
        end_values=torch.zeros(2, requires_grad=True),
        groups=torch.tensor([0, 0]),
        anchors=torch.tensor([0, 0]),
        instruction_values=torch.zeros(2, requires_grad=True),
    )
    result = credit.CREDIT[name](timeline, **ALL[name])
    assert not result.advantages.requires_grad
    assert result.value_targets is None or not result.value_targets.requires_grad
