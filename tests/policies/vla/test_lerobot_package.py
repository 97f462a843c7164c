"""A policy of LeRobot itself: made, taught, saved and loaded with the package, then played here.

Skipped where lerobot is not installed; `make test-extra-lerobot` has an environment for it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.policies.vla.point_env import NAME, STRIDE, PointEnv

from stepwell.core import ArrayState, Request, SamplingParams, Status
from stepwell.envs.batch import EnvBatch
from stepwell.policies.vla import LeRobotSampler
from stepwell.rollout.episodes import Rollout
from stepwell.rollout.jobs import Job
from stepwell.rollout.robot_player import RobotPlayer

pytest.importorskip("lerobot")

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors

CHUNK = 8
STATE, GOAL = "observation.state", "observation.environment_state"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeRobot's ACT, taught to go home, with the processors that normalise what it sees and does."""
    torch.manual_seed(0)
    features = {STATE: PolicyFeature(FeatureType.STATE, (2,)), GOAL: PolicyFeature(FeatureType.ENV, (2,))}
    mean, least = NormalizationMode.MEAN_STD, NormalizationMode.MIN_MAX
    config = ACTConfig(
        input_features=features,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        normalization_mapping={"STATE": mean, "ENV": mean, "ACTION": least},
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=1,
        use_vae=False,
        dropout=0.0,
        device="cpu",
    )
    policy = ACTPolicy(config)
    stats = {
        **{name: {"mean": torch.zeros(2), "std": torch.full((2,), 0.5)} for name in (STATE, GOAL)},
        "action": {"min": torch.full((2,), -1.0), "max": torch.full((2,), 1.0)},
    }
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    policy.train()
    for _ in range(400):
        state, goal = torch.rand(2, 128, 2) * 2 - 1
        way = (goal - state) / STRIDE
        actions = torch.stack([(way - k).clamp(-1, 1) for k in range(CHUNK)], dim=1)
        batch = before({STATE: state, GOAL: goal, "action": actions})
        loss, _ = policy.forward(batch | {"action_is_pad": torch.zeros(128, CHUNK, dtype=torch.bool)})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("act")
    policy.save_pretrained(path)
    before.save_pretrained(path)
    after.save_pretrained(path)
    return path


def sampler(path: Path, chunk: int = 1) -> LeRobotSampler:
    return LeRobotSampler.from_pretrained(path, chunk=chunk)


def test_a_saved_policy_of_lerobot_plays_an_env_of_ours(saved: Path) -> None:
    rollout = Rollout(EnvBatch(NAME, {}, 3), RobotPlayer(NAME), sampler(saved))
    jobs = [Job(PointEnv.make_task(None, i), "g", i) for i in range(8)]
    played = rollout.run(jobs, SamplingParams()).trajectories
    assert [t.status for t in played] == [Status.SUCCESS] * 8
    assert all(step.behavior_logprobs.size == 0 for t in played for step in t.steps)


def test_its_actions_are_those_that_lerobot_itself_gives(saved: Path) -> None:
    config = PreTrainedConfig.from_pretrained(str(saved))
    policy = ACTPolicy.from_pretrained(saved, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=str(saved))
    seen = np.array([0.3, -0.2, -0.4, 0.1], np.float32)
    with torch.inference_mode():
        batch = before({STATE: torch.from_numpy(seen[None, :2]), GOAL: torch.from_numpy(seen[None, 2:])})
        own = after(policy.predict_action_chunk(batch))[0]
    state = ArrayState({"proprio": seen[:2], "state": seen[2:]})
    (sampled,) = sampler(saved, chunk=5).generate_blocking([Request(state)])
    np.testing.assert_allclose(sampled.action.chunk, own[:5].clamp(-1, 1).numpy(), atol=1e-6)


def test_a_full_batch_is_answered_as_one_by_one(saved: Path) -> None:
    states = [
        ArrayState({"proprio": np.array([x, 0.1], np.float32), "state": np.array([-x, 0.4], np.float32)})
        for x in (-0.5, 0.0, 0.7)
    ]
    mine = sampler(saved, chunk=CHUNK)
    together = mine.generate_blocking([Request(state) for state in states])
    alone = [mine.generate_blocking([Request(state)])[0] for state in states]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.action.chunk, other.action.chunk, atol=1e-5)
