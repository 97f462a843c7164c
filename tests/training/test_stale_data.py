"""Data of several versions: the old is weighted by the truncated ratio, only the fresh is compared."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.training.made import made

from stepwell.algos import LossInputs
from stepwell.algos.losses import ppo_loss
from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import Trajectory, VersionSpan
from stepwell.packing import Outputs, evaluate
from stepwell.policies import CausalLMPolicy, resolve_model
from stepwell.training import Trainer
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.objective import Objective

CPU = torch.device("cpu")


def siblings(*versions: int) -> list[Trajectory]:
    """One group whose members were sampled by these versions; actions of two tokens, two steps each."""
    group = [made([0.0, float(i)], group="g") for i in range(len(versions))]
    for trajectory, version in zip(group, versions, strict=True):
        for step in trajectory.steps:
            step.policy_version = VersionSpan(version, version)
    return group


def objective(group: list[Trajectory], version: int | None) -> Objective:
    return Objective(
        RECIPES["rloo"], TrajectoryMinibatch(group, CPU), torch.full((8,), -1.0), version=version
    )


def test_stale_steps_are_weighted_by_the_truncated_ratio_and_fresh_ones_are_not() -> None:
    group = siblings(5, 3)
    now = torch.tensor([-1.0, -1.0, -1.0, -1.0, -0.5, -1.5, 0.0, -1.0])
    one = objective(group, 5)
    _, metrics = one(Outputs(now.clone().requires_grad_(), None, None))
    behavior = torch.full((8,), -1.0)
    proximal = torch.cat([behavior[:4], now[4:]])
    assert one._timeline is not None and one._credit is not None
    inputs = LossInputs(one._timeline, now, behavior, one._credit.advantages, proximal_logprobs=proximal)
    expected, found = ppo_loss(inputs, **RECIPES["rloo"].loss.kwargs)
    assert metrics["loss/policy"] == pytest.approx(float(expected), abs=1e-6)
    assert metrics["correction"] == pytest.approx(float(found["correction_mean"]))
    assert metrics["correction_capped_share"] == pytest.approx(1 / 8)  # e^1 is above the cap of 2
    assert float(metrics["parity/max"]) == 0.0  # only what version 5 sampled is compared
    assert metrics["ratio"] == 1.0 and metrics["clip_share"] == 0.0  # old samples are not clipped in one step


def test_the_start_of_the_update_stays_the_start_in_later_passes() -> None:
    one = objective(siblings(1, 0), 1)
    first = torch.linspace(-2.0, -0.5, 8)
    one(Outputs(first.clone().requires_grad_(), None, None))
    kept = one.proximal
    one(Outputs((first + 0.3).requires_grad_(), None, None))
    assert one.proximal is kept is not None
    assert torch.equal(kept[4:], first[4:]) and bool((kept[:4] == -1.0).all())


def test_data_of_the_present_version_are_learnt_from_as_without_a_version() -> None:
    now = torch.linspace(-2.0, -0.5, 8)
    plain, aware = (objective(siblings(2, 2), version) for version in (None, 2))
    results = [float(one(Outputs(now.clone(), None, None))[0]) for one in (plain, aware)]
    assert results[0] == results[1] and aware.proximal is None


def test_a_step_sampled_while_weights_changed_counts_as_the_older() -> None:
    group = siblings(4, 4)
    group[0].steps[1].policy_version = VersionSpan(3, 4)
    assert TrajectoryMinibatch(group, CPU).is_behind(4).tolist() == [False] * 2 + [True] * 2 + [False] * 4


def test_every_minibatch_is_corrected_to_the_weights_before_the_first_step() -> None:
    policy = CausalLMPolicy.from_pretrained(resolve_model("tiny-0.3m", seed=0))
    before = copy.deepcopy(policy)
    data = [*siblings(0, 0), *(copy.copy(t) for t in siblings(0, 0))]
    for trajectory in data[2:]:
        trajectory.group = "h"
    settings = TrainConfig(minibatches=2, num_updates=1, group_size=2, tasks_per_update=2)
    seen: list[Objective] = []

    class Watched(Trainer):
        def _build_objective(self, *args: object, **more: object) -> Objective:  # type: ignore[override]
            seen.append(super()._build_objective(*args, **more))  # type: ignore[arg-type]
            return seen[-1]

        def _evaluate(self, minibatch: TrajectoryMinibatch, needs: dict[str, bool]) -> Outputs:
            evaluated.append(minibatch)
            return super()._evaluate(minibatch, needs)

    evaluated: list[TrajectoryMinibatch] = []
    trainer = Watched(policy, RECIPES["rloo"], settings)
    trainer.freeze_reference()
    trainer.update(
        data, version=1, check_parity=lambda gaps, _: pytest.fail("there is nothing fresh to compare")
    )
    assert len(seen) == 2
    assert evaluated == [seen[1].minibatch]  # the first one's first pass is made with these weights anyway
    for one in seen:
        with torch.no_grad():
            start = evaluate(before, one.minibatch.packed).logprobs
        assert one.proximal is not None and start is not None
        assert torch.allclose(one.proximal, start, atol=1e-6)
