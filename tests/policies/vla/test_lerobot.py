"""LeRobot policies as samplers, by objects that have LeRobot's methods."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from tests.policies.vla.point_env import NAME, STRIDE, PointEnv

from stepwell.core import ArrayState, ConfigError, Request, SamplingParams, Status
from stepwell.envs.batch import EnvBatch
from stepwell.policies.vla import LeRobotSampler
from stepwell.rollout.episodes import Rollout
from stepwell.rollout.jobs import Job
from stepwell.rollout.robot_player import RobotPlayer


class Homing:
    """Goes straight to where the environment's state says the goal is, eight actions at a time."""

    def __init__(self) -> None:
        self.num_resets = 0

    def reset(self) -> None:
        self.num_resets += 1

    def predict_action_chunk(self, batch: dict) -> torch.Tensor:  # type: ignore[type-arg]
        way = (batch["observation.environment_state"] - batch["observation.state"]) / STRIDE
        return torch.stack([(way - k).clamp(-1, 1) for k in range(8)], dim=1)


class Stepping:
    """Has `select_action` only."""

    def reset(self) -> None:
        self.is_fresh = True

    def select_action(self, batch: dict) -> torch.Tensor:  # type: ignore[type-arg]
        assert self.is_fresh
        self.is_fresh = False
        return (batch["observation.environment_state"] - batch["observation.state"]) / STRIDE


@pytest.mark.parametrize(("policy", "chunk"), [(Homing(), 1), (Stepping(), 1)])
def test_it_plays_our_envs_and_leaves_trajectories_without_logprobs(policy: object, chunk: int) -> None:
    rollout = Rollout(EnvBatch(NAME, {}, 3), RobotPlayer(NAME), LeRobotSampler(policy, chunk=chunk))
    jobs = [Job(PointEnv.make_task(None, i), "g", i) for i in range(5)]
    played = rollout.run(jobs, SamplingParams()).trajectories
    assert [t.status for t in played] == [Status.SUCCESS] * 5
    assert all(step.behavior_logprobs.size == 0 for t in played for step in t.steps)


def test_a_batch_is_in_its_words() -> None:
    image = np.zeros((4, 6, 3), np.uint8)
    image[..., 1] = 255
    arrays = {"proprio": np.array([1, 2], np.float32), "top": image, "state": np.array([3], np.float32)}
    sampler = LeRobotSampler(Homing(), rename={"top": "observation.image"})
    batch = sampler.build_batch([ArrayState(arrays, "go"), ArrayState(arrays, "stay")])
    assert batch["observation.state"].tolist() == [[1.0, 2.0]] * 2
    assert batch["observation.environment_state"].tolist() == [[3.0]] * 2
    assert batch["observation.image"].shape == (2, 3, 4, 6)
    assert batch["observation.image"].mean(dim=(0, 2, 3)).tolist() == [0.0, 1.0, 0.0]
    assert batch["task"] == ["go", "stay"]
    joined = LeRobotSampler(Homing(), rename={"state": "observation.state"})
    assert joined.build_batch([ArrayState(arrays, "go")])["observation.state"].tolist() == [[1.0, 2.0, 3.0]]


def test_chunks_are_cut_and_processors_applied() -> None:
    state = ArrayState({"proprio": np.zeros(2, np.float32), "state": np.full(2, 0.5 * STRIDE, np.float32)})
    sampler = LeRobotSampler(
        Homing(),
        chunk=3,
        preprocess=lambda batch: {k: v * 2 if k.startswith("observation.") else v for k, v in batch.items()},
        postprocess=lambda actions: actions * 0.5,
    )
    (sampled,) = sampler.generate_blocking([Request(state)])
    assert sampled.action.chunk.tolist() == [[0.5, 0.5], [0.0, 0.0], [-0.5, -0.5]]


def test_what_is_no_policy_and_a_missing_package_are_refused() -> None:
    with pytest.raises(ConfigError, match="neither predict_action_chunk nor select_action"):
        LeRobotSampler(object())
    if importlib.util.find_spec("lerobot") is None:
        with pytest.raises(ConfigError, match="pip install lerobot"):
            LeRobotSampler.from_pretrained("somewhere")
