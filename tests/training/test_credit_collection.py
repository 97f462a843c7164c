"""What an update made of each trajectory, as the trainer hands it out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.policies.vla.made import policy as robot_policy
from tests.runs.small import warmed_model
from tests.training.made import sampled
from tests.training.test_array_training import episodes

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import Trajectory
from stepwell.policies import CausalLMPolicy
from stepwell.pool.credit_records import CreditRecord
from stepwell.training import Trainer


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return sampled()[1]


def learn(
    name: str, trajectories: list[Trajectory], **settings: object
) -> tuple[list[CreditRecord], dict[str, float]]:
    torch.manual_seed(0)
    critic = "shared" if RECIPES[name].needs_critic else None
    policy = CausalLMPolicy.from_pretrained(warmed_model(), critic=critic)  # type: ignore[arg-type]
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 3e-3}, **settings})
    trainer = Trainer(policy, RECIPES[name], config, horizon=2)
    trainer.freeze_reference()
    kept: list[CreditRecord] = []
    metrics = trainer.update(trajectories, keep_credit=kept.extend)
    return kept, metrics


def test_every_token_of_every_trajectory_has_its_credit(trajectories: list[Trajectory]) -> None:
    kept, metrics = learn("steppo", trajectories)
    by_id = {record.trajectory: record for record in kept}
    assert by_id.keys() == {t.id for t in trajectories} and len(kept) == len(trajectories)
    for t in trajectories:
        record = by_id[t.id]
        assert record.tokens_per_step.tolist() == [step.num_units for step in t.steps]
        assert record.advantages is not None and record.values is not None and record.ratios is not None
        for part in record.split_tokens(record.advantages):
            assert np.ptp(part) == 0  # StepPO: one advantage per step
        assert np.allclose(record.ratios, 1.0, atol=1e-3)  # one pass over fresh samples
        assert record.is_trained.all() and not record.is_clipped.any()
    everything = np.concatenate([part for r in kept for part in _first_of_steps(r)])
    assert everything.mean() == pytest.approx(0.0, abs=1e-5)  # whitened over steps
    assert metrics["clip_share"] == 0.0


def _first_of_steps(record: CreditRecord) -> list[np.ndarray]:  # type: ignore[type-arg]
    assert record.advantages is not None
    return [part[:1] for part in record.split_tokens(record.advantages)]


def test_ratios_and_clips_are_those_of_the_last_pass(trajectories: list[Trajectory]) -> None:
    kept, metrics = learn("grpo", trajectories, update_epochs=4)
    ratios = np.concatenate([record.ratios for record in kept])  # type: ignore[misc]
    clipped = np.concatenate([record.is_clipped for record in kept])
    assert np.ptp(ratios) > 0.01
    assert clipped.any() and metrics["clip_share"] > 0
    assert all(record.values is None for record in kept)  # there is no critic


def test_collecting_credit_changes_nothing(trajectories: list[Trajectory]) -> None:
    def weights(*, keeps: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        policy = CausalLMPolicy.from_pretrained(warmed_model(), critic="shared")
        trainer = Trainer(policy, RECIPES["steppo"], TrainConfig(minibatches=2), horizon=2)
        trainer.freeze_reference()
        trainer.update(trajectories, keep_credit=[].extend if keeps else None)
        return policy.state_dict()

    one, other = weights(keeps=True), weights(keeps=False)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_minibatches_leave_the_same_credit(trajectories: list[Trajectory]) -> None:
    whole, parts = learn("steppo", trajectories)[0], learn("steppo", trajectories, minibatches=3)[0]
    found = {record.trajectory: record for record in parts}
    for record in whole:
        other = found[record.trajectory]
        assert record.advantages is not None and other.advantages is not None
        assert np.allclose(record.advantages, other.advantages, atol=1e-4)


def test_steps_off_the_mask_are_marked(trajectories: list[Trajectory]) -> None:
    torch.manual_seed(0)
    policy = CausalLMPolicy.from_pretrained(warmed_model(), critic=None)
    trainer = Trainer(policy, RECIPES["grpo"], TrainConfig(), horizon=2)
    trainer.freeze_reference()
    kept: list[CreditRecord] = []
    chosen = next(t for t in trajectories if len(t.steps) == 2)
    trainer.update(trajectories, trained_steps={chosen.id: [True, False]}, keep_credit=kept.extend)
    (record,) = [record for record in kept if record.trajectory == chosen.id]
    assert [bool(part.all()) for part in record.split_tokens(record.is_trained)] == [True, False]


def test_robots_leave_credit_too() -> None:
    policy = robot_policy("token", critic="shared")
    batch = episodes(policy)
    for i, step in enumerate(step for t in batch for step in t.steps):
        step.assign_reward({"task": 0.1 * (i % 3)})
    kept: list[CreditRecord] = []
    trainer = Trainer(policy, RECIPES["steppo"], TrainConfig(), horizon=2)
    trainer.freeze_reference()
    trainer.update(batch, keep_credit=kept.extend)
    assert [record.tokens_per_step.tolist() for record in kept] == [
        [step.num_units for step in t.steps]
        for t in sorted(batch, key=lambda t: [r.trajectory for r in kept].index(t.id))
    ]
