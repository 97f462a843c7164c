"""Drawn batches of trajectories, and credit by plain recursions over lists."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st

from stepwell.algos import CreditResult, Timeline

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
