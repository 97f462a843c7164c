"""Credit equals what textbooks and papers write, computed by plain recursions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from tests.algos.credit_batches import (
    ALL,
    Trajectory,
    assert_nested,
    batches,
    fold,
    recursion,
    repeat,
    timeline_of,
)

from stepwell.algos import credit

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
