"""What must hold for every batch: textbook recursions, permutations, independence, special cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.algos import CreditResult, Timeline, credit

Nested = list[list[list[float]]]

ALL = {
    "token_gae": {"gamma": 0.9, "lam": 0.8},
    "step_gae": {"gamma": 0.9, "lam": 0.8},
    "turn_gae": {"gamma": 0.9, "lam": 0.8},
    "bilevel_gae": {"gamma_turn": 0.9, "lam_turn": 0.8, "gamma_token": 0.7, "lam_token": 0.6},
    "grpo": {},
    "rloo": {},
    "reinforce_pp": {"gamma": 0.9},
    "gigpo": {},
    "webrl_advantage": {},
    "digirl_advantage": {"horizon": 8, "keep_top": 0.5},
    "mc_advantage": {},
}
# Credit of a trajectory that depends on that trajectory alone.
ALONE = ["token_gae", "step_gae", "turn_gae", "bilevel_gae", "webrl_advantage", "mc_advantage"]
# ... on its group alone.
GROUPED = ["grpo", "rloo", "gigpo"]


@dataclass
class Trajectory:
    rewards: list[float]
    token_values: list[list[float]]
    end_values: list[float]
    token_rewards: list[list[float]]
    bootstrap: float
    group: int
    anchors: list[int]
    instruction_value: float


number = st.floats(-2, 2, allow_nan=False, width=32)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))

    def per_step() -> list[float]:
        return draw(st.lists(number, min_size=len(lengths), max_size=len(lengths)))

    def per_token() -> list[list[float]]:
        return [draw(st.lists(number, min_size=n, max_size=n)) for n in lengths]

    return Trajectory(
        per_step(),
        per_token(),
        per_step(),
        per_token(),
        draw(number),
        draw(st.integers(0, 2)),
        draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths))),
        draw(number),
    )


batches = st.lists(trajectories(), min_size=1, max_size=4)


def timeline_of(batch: list[Trajectory], dtype: torch.dtype = torch.float64) -> Timeline:
    return Timeline.from_lists(
        rewards=[x.rewards for x in batch],
        token_values=[x.token_values for x in batch],
        end_values=[x.end_values for x in batch],
        token_rewards=[x.token_rewards for x in batch],
        bootstrap=[x.bootstrap for x in batch],
        groups=[x.group for x in batch],
        anchors=[x.anchors for x in batch],
        instruction_values=[x.instruction_value for x in batch],
        dtype=dtype,
    )


def assert_nested(result: CreditResult, expected: Nested) -> None:
    for got, want in zip(result.to_lists(), expected, strict=True):
        for got_step, want_step in zip(got, want, strict=True):
            assert got_step == pytest.approx(want_step, abs=1e-9)


def repeat(values: list[float], x: Trajectory) -> list[list[float]]:
    return [[value] * len(action) for value, action in zip(values, x.token_values, strict=True)]


def recursion(
    rewards: list[float], values: list[float], final: float, gamma: float, lam: float
) -> list[float]:
    """GAE as every textbook writes it."""
    advantages, advantage, next_value = [], 0.0, final
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * lam * advantage
        advantages.append(advantage)
        next_value = value
    return advantages[::-1]


def fold(flat: list[float], x: Trajectory) -> list[list[float]]:
    remaining = iter(flat)
    return [[next(remaining) for _ in action] for action in x.token_values]


# One trajectory equals the textbook recursion


@pytest.mark.parametrize("reward_at", ["trajectory_end", "step_end"])
@given(batch=batches)
def test_token_gae_equals_the_textbook_recursion(reward_at: str, batch: list[Trajectory]) -> None:
    expected = []
    for x in batch:
        rewards = [k for action in x.token_rewards for k in action]
        ends = [sum(len(action) for action in x.token_values[: t + 1]) - 1 for t in range(len(x.rewards))]
        for end, reward in zip(ends, x.rewards, strict=True):
            rewards[end if reward_at == "step_end" else -1] += reward
        values = [v for action in x.token_values for v in action]
        expected.append(fold(recursion(rewards, values, x.bootstrap, 0.9, 0.8), x))
    result = credit.token_gae(timeline_of(batch), gamma=0.9, lam=0.8, reward_at=reward_at)  # type: ignore[arg-type]
    assert_nested(result, expected)


@given(batches)
def test_step_gae_equals_the_textbook_recursion(batch: list[Trajectory]) -> None:
    expected = []
    for x in batch:
        rewards = [r + sum(k) for r, k in zip(x.rewards, x.token_rewards, strict=True)]
        values = [action[0] for action in x.token_values]
        expected.append(repeat(recursion(rewards, values, x.bootstrap, 0.9, 0.8), x))
    assert_nested(credit.step_gae(timeline_of(batch), gamma=0.9, lam=0.8), expected)


@given(batches)
def test_turn_gae_equals_the_textbook_recursion(batch: list[Trajectory]) -> None:
    firsts = [[action[0] for action in x.token_values] for x in batch]
    both = {"state": firsts, "end": [x.end_values for x in batch]}
    for site, values in both.items():
        turns = [recursion(x.rewards, v, x.bootstrap, 0.9, 0.8) for x, v in zip(batch, values, strict=True)]
        expected = [repeat(advantages, x) for advantages, x in zip(turns, batch, strict=True)]
        found = credit.turn_gae(timeline_of(batch), gamma=0.9, lam=0.8, site=site)  # type: ignore[arg-type]
        assert_nested(found, expected)


@pytest.mark.parametrize("final", ["td_plus_turn", "turn"])
@given(batch=batches)
def test_bilevel_gae_equals_the_published_algorithm(final: str, batch: list[Trajectory]) -> None:
    expected = []
    for x in batch:
        turns = recursion(x.rewards, x.end_values, x.bootstrap, 0.9, 0.8)
        trajectory = []
        for t, turn in enumerate(turns):
            values, end, penalties = x.token_values[t], x.end_values[t], x.token_rewards[t]
            last = penalties[-1] + 0.7 * end - values[-1] + turn if final == "td_plus_turn" else turn
            advantages = [last]
            for i in range(len(values) - 2, -1, -1):
                delta = penalties[i] + 0.7 * values[i + 1] - values[i]
                advantages.append(delta + 0.7 * 0.6 * advantages[-1])
            trajectory.append(advantages[::-1])
        expected.append(trajectory)
    kwargs = ALL["bilevel_gae"] | {"final": final}
    assert_nested(credit.bilevel_gae(timeline_of(batch), **kwargs), expected)  # type: ignore[arg-type]


@given(batches)
def test_group_credit_equals_plain_group_statistics(batch: list[Trajectory]) -> None:
    returns = [math.fsum(x.rewards) for x in batch]
    grpo, rloo = [], []
    for x, own in zip(batch, returns, strict=True):
        group = [r for y, r in zip(batch, returns, strict=True) if y.group == x.group]
        mean = sum(group) / len(group)
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / max(1, len(group) - 1))
        grpo.append(repeat([(own - mean) / (std + 1e-6)] * len(x.rewards), x))
        others = (sum(group) - own) / (len(group) - 1) if len(group) > 1 else own
        rloo.append(repeat([own - others] * len(x.rewards), x))
    assert_nested(credit.rloo(timeline_of(batch)), rloo)
    if max(map(abs, returns)) == 0.0 or min_spread(returns) > 1e-6:  # else rounding decides (R − mean)/eps
        assert_nested(credit.grpo(timeline_of(batch)), grpo)


def min_spread(returns: list[float]) -> float:
    gaps = [abs(a - b) for i, a in enumerate(returns) for b in returns[:i] if a != b]
    return min(gaps, default=1.0)


@given(batches)
def test_gigpo_equals_plain_cell_statistics(batch: list[Trajectory]) -> None:
    step_returns = [recursion(x.rewards, [0.0] * len(x.rewards), 0.0, 0.95, 1.0) for x in batch]
    flat = [
        (x.group, anchor, value)
        for x, values in zip(batch, step_returns, strict=True)
        for anchor, value in zip(x.anchors, values, strict=True)
    ]
    expected = []
    for x, values in zip(batch, step_returns, strict=True):
        siblings = [math.fsum(y.rewards) for y in batch if y.group == x.group]
        episode = math.fsum(x.rewards) - sum(siblings) / len(siblings)
        steps = []
        for anchor, value in zip(x.anchors, values, strict=True):
            cell = [v for group, key, v in flat if group == x.group and key == anchor]
            steps.append(episode + 0.5 * (value - sum(cell) / len(cell)))
        expected.append(repeat(steps, x))
    assert_nested(credit.gigpo(timeline_of(batch), omega=0.5, normalize_std=False), expected)


@given(batches)
def test_outcome_credit_equals_its_formula_step_by_step(batch: list[Trajectory]) -> None:
    webrl, digirl, mc = [], [], []
    for x in batch:
        values = [action[0] for action in x.token_values]
        last, outcome = len(values) - 1, x.rewards[-1]
        rows: list[list[float]] = [[], [], []]
        for t, (reward, value) in enumerate(zip(x.rewards, values, strict=True)):
            final = 0.9 ** (last - t) * outcome
            after = values[t + 1] if t < last else 0.0
            rows[0].append(0.5 * (reward + 0.9 * after - value) + 0.5 * (final - value))
            after = values[t + 1] if t < last else x.bootstrap
            weight = 0.5 ** (last - t)
            rows[1].append(weight * outcome + (1 - weight) * (after + reward - value))
            rows[2].append(final - value)
        for table, row in zip((webrl, digirl, mc), rows, strict=True):
            table.append(repeat(row, x))
    timeline = timeline_of(batch)
    assert_nested(credit.webrl_advantage(timeline), webrl)
    assert_nested(credit.digirl_advantage(timeline), digirl)
    assert_nested(credit.mc_advantage(timeline), mc)


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
