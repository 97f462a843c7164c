"""A trainer on several devices: what one device computes, and an end for every failure."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.pipeline.small import warmed_model
from tests.training.made import sampled

from stepwell.algos.recipes import RECIPES
from stepwell.config.run import TrainConfig
from stepwell.core import Trajectory
from stepwell.policies import CausalLMPolicy
from stepwell.training import Trainer
from stepwell.training.policy import Policy

CONFIG = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}})


def language(critic: str | None = None, dtype: str = "float64") -> CausalLMPolicy:
    torch.manual_seed(0)
    return CausalLMPolicy.from_pretrained(warmed_model(), critic=critic, dtype=dtype)  # type: ignore[arg-type]


def trainer(policy: Policy, name: str, num_ranks: int) -> Trainer:
    made = Trainer(policy, RECIPES[name], CONFIG, horizon=2, devices=["cpu"] * num_ranks, rank_timeout_s=30)
    made.freeze_reference()
    return made


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return sampled()[1]


@pytest.mark.parametrize(("name", "num_ranks"), [("grpo", 2), ("grpo", 3)])
def test_ranks_make_the_update_of_one_device(
    trajectories: list[Trajectory], name: str, num_ranks: int
) -> None:
    alone, together = trainer(language(), name, 1), trainer(language(), name, num_ranks)
    try:
        for _ in range(3):
            one, other = alone.update(trajectories), together.update(trajectories)
            for key in one.keys() - {"packed_tokens"}:
                assert other[key] == pytest.approx(one[key], rel=1e-6, abs=1e-9), key
            for a, b in zip(alone.optimizer.parameters, together.optimizer.parameters, strict=True):
                assert (a.grad is None) == (b.grad is None)
                if a.grad is not None:
                    torch.testing.assert_close(b.grad, a.grad, rtol=1e-8, atol=1e-12)
        for a, b in zip(alone.optimizer.parameters, together.optimizer.parameters, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-7, atol=1e-8)
    finally:
        together.close()
