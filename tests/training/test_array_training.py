"""Robot steps through minibatches, imitation and the trainer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.policies.vla.made import CHUNK, DIM, policy, sampled_steps, shape, states

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import OptimizerConfig, TrainConfig, WarmStartConfig
from stepwell.core import ArrayAction, InputError, Status, Step, Task, Trajectory
from stepwell.policies.vla import VLAPolicy
from stepwell.training import Trainer, TrajectoryMinibatch, imitate

HEADS = ("token", "flow")
TASK = Task("w", {"n": 1})


def episodes(made: VLAPolicy, count: int = 4) -> list[Trajectory]:
    """Sampled trajectories of two steps, the second cut, in two groups."""
    steps = sampled_steps(made, states(2 * count), cuts=(CHUNK, 1))
    return [
        Trajectory(TASK, steps[2 * i : 2 * i + 2], Status.FAILURE, group=f"g{i % 2}") for i in range(count)
    ]


def shown(count: int = 10) -> list[Trajectory]:
    """Demonstrations of one step each, of one, two or three actions that follow from the state."""
    made = []
    for i, state in enumerate(states(count, seed=7)):
        actions = np.tanh(np.outer(np.arange(1, 2 + i % CHUNK), state.arrays["state"][:DIM]))
        step = Step(state, ArrayAction(actions.astype(np.float32), actions.size), np.zeros(0, np.float32))
        step.assign_reward({"task": float(i % 2)})
        made.append(Trajectory(TASK, [step], Status.SUCCESS))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_ten_demonstrations_are_learnt_by_heart(head: str) -> None:
    small = shape(head)
    wider = replace(small, config=small.config.model_copy(update={"width": 48, "bins": 64}))
    made = VLAPolicy.from_shape(wider, critic="shared", seed=1)
    demonstrations = shown()
    before = _error(made, demonstrations)
    config = WarmStartConfig(
        num_demos=10, batch_size=10, epochs=300, optimizer=OptimizerConfig(learning_rate=5e-3)
    )
    metrics = list(imitate(made, demonstrations, config, seed=0))
    assert metrics[-1]["loss/value"] < 0.01 < metrics[0]["loss/value"]
    assert _error(made, demonstrations) < 0.1 < 0.3 < before


def _error(made: VLAPolicy, demonstrations: list[Trajectory]) -> float:
    """Mean distance of what the policy does at temperature 0 from what was shown."""
    steps = [t.steps[0] for t in demonstrations]
    done = sampled_steps(made, [s.state for s in steps], temperature=0.0)
    gaps = [
        np.abs(a.action.chunk[: len(b.action.chunk)] - b.action.chunk).mean()
        for a, b in zip(done, steps, strict=True)
    ]
    return float(np.mean(gaps))


@pytest.mark.parametrize("head", HEADS)
def test_imitation_repeats_bit_for_bit(head: str) -> None:
    config = WarmStartConfig(num_demos=10, batch_size=4, epochs=2)
    ends = []
    for _ in range(2):
        made = VLAPolicy.from_shape(policy(head).model.shape, critic="own", seed=1)
        for _metrics in imitate(made, shown(), config, seed=3):
            pass
        ends.append(made.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("recipe", ["steppo", "ppo", "grpo", "turn-ppo", "vagen-full"])
def test_recipes_of_steps_units_and_groups_update_a_robot_policy(head: str, recipe: str) -> None:
    chosen = replace(RECIPES[recipe], reward_parts=("task",))
    made = policy(head, critic="shared" if chosen.needs_critic else None)
    trainer = Trainer(made, chosen, TrainConfig(num_updates=3, update_epochs=2, minibatches=2))
    trainer.freeze_reference()
    played = episodes(made)
    before = made.model.state_dict()["head.project.weight" if head == "token" else "head.out.weight"].clone()
    seen: list[float] = []
    metrics = trainer.update(played, check_parity=lambda gaps, _: seen.extend((gaps.max_abs, gaps.mean_abs)))
    after = made.model.state_dict()["head.project.weight" if head == "token" else "head.out.weight"]
    assert seen == pytest.approx([metrics["parity/max"], metrics["parity/mean"]])
    assert max(seen) < 1e-4  # fresh samples: the trainer's logprobs are the engine's
    assert not torch.equal(before, after)
    assert np.isfinite(metrics["kl"])
    assert metrics["packed_tokens"] == 8


@pytest.mark.parametrize("head", HEADS)
def test_the_size_of_microbatches_does_not_change_the_gradient(head: str) -> None:
    found = []
    for micro_batch in (None, 1, 3):
        made = policy(head, critic="own")
        trainer = Trainer(made, RECIPES["steppo"], TrainConfig(num_updates=3, micro_batch=micro_batch))
        trainer.freeze_reference()
        trainer.update(episodes(made))
        found.append(torch.cat([parameter.grad.flatten() for parameter in made.parameters()]))
    assert float(found[0].abs().max()) > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=0, atol=1e-5)


def test_an_update_raises_the_probability_of_what_went_better() -> None:
    for head in HEADS:
        made = policy(head, critic="own")
        played = episodes(made)
        for i, trajectory in enumerate(played):
            for step in trajectory.steps:
                step.assign_reward({"task": float(i >= 2)})
        good = [step for t in played[2:] for step in t.steps]
        bad = [step for t in played[:2] for step in t.steps]
        config = TrainConfig(num_updates=8, optimizer=OptimizerConfig(learning_rate=3e-3))
        trainer = Trainer(made, replace(RECIPES["grpo"], kl=None), config)
        before = [np.concatenate(made.score(steps)).mean() for steps in (good, bad)]
        for _ in range(8):
            trainer.update(played)
        after = [np.concatenate(made.score(steps)).mean() for steps in (good, bad)]
        assert after[0] > before[0] + 0.05 and after[1] < before[1] - 0.05, head


def test_states_after_a_cut_ride_along_as_values() -> None:
    made = policy("token", critic="own")
    played = episodes(made, count=2)
    (after,) = states(1, seed=11)
    played[1].status, played[1].final_state = Status.TRUNCATED, after
    batch = TrajectoryMinibatch(played, made.device, with_bootstrap=True)
    values = made.evaluate(batch.packed, values=True).values.detach()
    boot = batch.bootstrap_values(values)
    assert boot is not None and boot[0] == 0.0
    assert float(boot[1]) == pytest.approx(float(made.state_values([after])[0]), abs=1e-5)


def test_a_robots_trajectory_has_no_flat_sequence() -> None:
    made = policy("token", critic="shared")
    trainer = Trainer(made, RECIPES["vanilla-ppo"], TrainConfig())
    with pytest.raises(InputError, match="no flat sequence"):
        trainer.update(episodes(made))
