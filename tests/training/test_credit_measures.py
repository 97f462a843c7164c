"""Figures of credit by step and by site, and updates that teach the critic alone."""

from __future__ import annotations

import pytest
import torch
from tests.training.made import sampled
from tests.training.test_trainer import policy, trainer, weights

from stepwell.algos import Timeline, credit
from stepwell.config.training import OptimizerConfig
from stepwell.core import ConfigError
from stepwell.training.credit_measures import measure_credit

LENGTH, GAMMA = 3, 0.5


def blank_timeline(num_steps: int) -> Timeline:
    """Eight trajectories of steps of three tokens; the last step pays 1 to every other trajectory."""
    rewards = [[0.0] * (num_steps - 1) + [float(i % 2)] for i in range(8)]
    blank = [[[0.0] * LENGTH for _ in steps] for steps in rewards]
    return Timeline.from_lists(rewards, blank, end_values=[[0.0] * num_steps] * 8)


def test_the_size_of_credit_falls_by_the_discount_of_each_step() -> None:
    timeline = blank_timeline(4)
    result = credit.step_gae(timeline, gamma=GAMMA)
    found = measure_credit(timeline, result, None)
    sizes = [float(found[f"advantage/step_{number:02d}"]) for number in (1, 2, 3, 4)]
    assert sizes == pytest.approx([0.5 * GAMMA**left for left in (3, 2, 1, 0)])
    assert "advantage/step_05" not in found and len(found) == 4


def test_a_critic_is_judged_apart_at_every_kind_of_site() -> None:
    timeline = blank_timeline(2)
    result = credit.token_gae(timeline, gamma=1.0, reward_at="step_end")
    assert result.value_targets is not None and result.value_sites is not None
    knows = (result.value_sites[:, 1] > 0) | (result.value_sites[:, 0] % 2 == 1)
    values = torch.where(knows, result.value_targets, torch.zeros_like(result.value_targets))
    found = {name: float(x) for name, x in measure_credit(timeline, result, values).items()}
    assert found["explained/inside"] == pytest.approx(1.0)
    assert found["explained/step_02"] == pytest.approx(1.0)
    assert found["explained/step_01"] < 1.0
    assert found["explained/state"] == pytest.approx(1 - 3 / 16 / 0.25)  # half of the outcomes are known
    assert "explained/end" not in found  # token GAE gives no target there


def test_few_steps_give_no_figure() -> None:
    timeline = Timeline.from_lists([[0.0, 1.0]] * 4)
    assert measure_credit(timeline, credit.grpo(_with_groups(timeline)), None) == {}


def _with_groups(timeline: Timeline) -> Timeline:
    rewards = timeline.rewards.view(4, 2).tolist()
    return Timeline.from_lists(rewards, groups=[0, 0, 1, 1])


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_first_updates_may_teach_the_critic_alone(kind: str) -> None:
    trajectories = sampled(num_tasks=4)[1]
    optimizer = OptimizerConfig.model_validate({"kind": kind, "weight_decay": 0.1})
    one = trainer(
        "steppo",
        own=policy("own"),
        critic_only_updates=1,
        minibatches=2,
        measure_credit=True,
        optimizer=optimizer,
    )
    before = weights(one)
    told = one.update(trajectories)
    after = weights(one)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    critic = {name for name in before if name.startswith("critic")}
    assert moved and moved <= critic
    assert "loss/policy" not in told and "loss/value" in told and "advantage/step_01" in told
    assert "loss/policy" in one.update(trajectories)
    last = weights(one)
    assert any(not torch.equal(after[name], last[name]) for name in before.keys() - critic)


def test_the_schedule_begins_again_when_the_policy_begins_to_learn() -> None:
    """The optimizer knows no gradient of the policy before, so its first steps would be full ones."""
    trajectories = sampled(num_tasks=4)[1]
    plan = {"warmup_updates": 1, "schedule": "linear", "num_updates": 5, "final_learning_rate": 0.0}
    one = trainer("steppo", own=policy("own"), critic_only_updates=2, **plan)
    full = one.config.optimizer.learning_rate
    rates = [one.update(trajectories)["learning_rate"] / full for _ in range(5)]
    assert rates == pytest.approx([0.5, 1.0, 0.5, 1.0, 0.0])


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_critic_may_be_taught_before_the_policy_reads_its_values(minibatches: int) -> None:
    trajectories = sampled(num_tasks=4)[1]
    plain = trainer("steppo", own=policy("own"), minibatches=minibatches)
    told = plain.update(trajectories)
    one = trainer("steppo", own=policy("own"), critic_epochs=2, minibatches=minibatches)
    taught = one.update(trajectories)
    assert taught["explained_variance"] == pytest.approx(told["explained_variance"])  # before it was taught
    assert taught["loss/value"] < told["loss/value"]
    assert any(not torch.equal(weights(plain)[name], new) for name, new in weights(one).items())


def test_what_the_critic_explains_is_measured_on_the_updates_own_episodes() -> None:
    """Replayed episodes are successes because they were chosen, whatever the critic says of their states."""
    trajectories = sampled(num_tasks=4)[1]
    own, replayed = trajectories[:5], trajectories[5:]
    masks = {each.id: [True] * len(each.steps) for each in replayed}
    with_replay = trainer("steppo", own=policy("own"), minibatches=2).update(
        trajectories, trained_steps=masks
    )
    alone = trainer("steppo", own=policy("own"), minibatches=2).update(own)
    everything = trainer("steppo", own=policy("own"), minibatches=2).update(trajectories)
    assert with_replay["explained_variance"] == pytest.approx(alone["explained_variance"], abs=1e-6)
    assert with_replay["explained_variance"] != pytest.approx(everything["explained_variance"], abs=1e-6)


def test_a_critic_taught_first_is_that_of_an_update_before() -> None:
    """One pass and then the policy is the same as an update of the critic alone and then one of both."""
    trajectories = sampled(num_tasks=4)[1]
    first = trainer("steppo", own=policy("own"), critic_epochs=1)
    first.update(trajectories)
    after = trainer("steppo", own=policy("own"), critic_only_updates=1)
    for _ in range(2):
        after.update(trajectories)
    for name, weight in weights(first).items():
        assert torch.allclose(weight, weights(after)[name], atol=1e-6), name


def test_a_critic_on_the_policys_backbone_cannot_be_taught_alone() -> None:
    with pytest.raises(ConfigError, match=r"set policy\.critic to 'own'"):
        trainer("steppo", critic_only_updates=2)
    with pytest.raises(ConfigError, match=r"set policy\.critic to 'own'"):
        trainer("steppo", critic_epochs=1)
    assert trainer("grpo", critic_only_updates=2).config.critic_only_updates == 2  # it has no critic
