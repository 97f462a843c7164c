"""Robot episodes: what is asked, recorded and rewarded; experts' demonstrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.policies.vla.point_env import NAME, STRIDE, PointEnv

from stepwell.config.run import RewardConfig
from stepwell.core import (
    ArrayAction,
    ArrayState,
    ConfigError,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Status,
    Task,
)
from stepwell.core.versions import VersionSpan
from stepwell.envs.batch import EnvBatch
from stepwell.envs.turns import Turn
from stepwell.rollout.episodes import Rollout
from stepwell.rollout.jobs import Job
from stepwell.rollout.robot_demonstrations import ExpertSampler, demonstrate_robot, regroup_into_chunks
from stepwell.rollout.robot_player import RobotPlayer, keep_executed

NEAR = Task(NAME, {"point": [0.0, 0.0], "goal": [0.5, 0.0]}, "go to the goal")
FAR = Task(NAME, {"point": [-0.9, -0.9], "goal": [0.9, 0.9]}, "go to the goal")


class Straight:
    """Chunks of three actions along the first axis, with one logprob of -k for unit k."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        self.asked += requests
        chunk = np.tile(np.array([1.0, 0.0], np.float32), (3, 1))
        bins = np.arange(6, dtype=np.int32).reshape(3, 2)
        return [
            Sampled(
                ArrayAction(chunk, 6, {"bins": bins}),
                -np.arange(6, dtype=np.float32),
                Sampling(seed=request.params.seed),
                VersionSpan.at(5),
            )
            for request in requests
        ]


def play(tasks: Sequence[Task], **settings: object) -> tuple[list, Straight]:  # type: ignore[type-arg]
    sampler = Straight()
    rollout = Rollout(EnvBatch(NAME, {"max_actions": 7}, 2), RobotPlayer(NAME, **settings), sampler)  # type: ignore[arg-type]
    jobs = [Job(task, "g", 10 + i) for i, task in enumerate(tasks)]
    return rollout.run(jobs, SamplingParams(temperature=0.7)).trajectories, sampler


def test_an_episode_ends_with_success_or_at_the_limit_of_actions() -> None:
    (near, far), sampler = play([NEAR, FAR])
    assert (near.status, far.status) == (Status.SUCCESS, Status.FAILURE)
    assert near.info == {"num_actions": 3, "seed": 10} and far.info["num_actions"] == 7
    assert len(near.steps) == 1 and [step.num_units for step in far.steps] == [6, 6, 2]
    assert [step.reward for step in far.steps] == [0.0, 0.0, 0.0] and near.total_reward == 1.0
    assert near.steps[0].policy_version == VersionSpan.at(5)
    assert near.final_state is None
    seeds = [request.params.seed for request in sampler.asked]
    assert len(set(seeds)) == len(seeds) and sampler.asked[0].params.temperature == 0.7


def test_a_chunk_cut_by_the_end_keeps_what_was_executed() -> None:
    (far,), _ = play([FAR])
    last = far.steps[-1]
    assert last.action.chunk.tolist() == [[1.0, 0.0]]
    assert last.action.draws["bins"].tolist() == [[0, 1]]
    assert last.behavior_logprobs.tolist() == [0.0, -1.0]
    shown = last.state.arrays["proprio"]
    np.testing.assert_allclose(shown, [-0.9 + 6 * STRIDE, -0.9], atol=1e-6)


def test_a_cut_flow_chunk_keeps_every_transition_with_the_share_of_what_was_executed() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    chain = np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32)
    action = ArrayAction(np.zeros((3, 2), np.float32), 4, {"chain": chain, "row_logprobs": rows})
    whole = Sampled(action, rows.sum(axis=1), Sampling(), VersionSpan.at(0))
    cut = keep_executed(whole, 2)
    assert cut.logprobs.tolist() == [1.0, 7.0, 13.0, 19.0] and cut.action.num_units == 4
    assert np.array_equal(cut.action.draws["chain"], chain) and cut.action.chunk.shape == (2, 2)
    assert keep_executed(whole, 3).logprobs.tolist() == whole.logprobs.tolist()
    assert set(cut.action.draws) == {"chain"}


def test_parts_of_the_reward_are_chosen_weighted_and_scaled() -> None:
    weights = RewardConfig(process=2.0, scale=0.1)
    (near,), _ = play([NEAR], parts=("task", "outcome"), optional_parts=("process",), weights=weights)
    (step,) = near.steps
    moved = 0.5 - 0.05  # from 0.5 to 0.05 of the goal
    assert step.reward_parts == pytest.approx({"task": 0.1, "outcome": 0.1, "process": 0.1 * 2.0 * moved})
    assert step.info["parts"]["process"] == pytest.approx(2.0 * moved)
    with pytest.raises(ConfigError, match="format"):
        play([NEAR], parts=("format",))


def test_an_env_that_fails_or_gives_no_number_is_the_systems_failure() -> None:
    player = RobotPlayer(NAME)
    broken = player.begin_episode(0, Job(NEAR, "g", 1), Turn(error=RuntimeError("no simulator")))
    assert (
        broken.status is Status.INFRA_ERROR and player.build_trajectory(broken, 0.0).error == "no simulator"
    )
    state = ArrayState({"proprio": np.zeros(2, np.float32)})
    episode = player.begin_episode(0, Job(NEAR, "g", 1), Turn(state))
    request = player.make_request(episode, SamplingParams())
    (sampled,) = Straight().generate_blocking([request])
    odd = Turn(state, float("nan"), info={"num_actions": 3})
    player.record_step(episode, request, sampled, player.read_reply(sampled), odd)
    assert episode.status is Status.INFRA_ERROR and "nan" in episode.error


def test_an_episode_cut_by_our_budget_keeps_the_state_after_it() -> None:
    player = RobotPlayer(NAME)
    first, second = (ArrayState({"proprio": np.full(2, i, np.float32)}) for i in range(2))
    episode = player.begin_episode(0, Job(NEAR, "g", 1), Turn(first))
    request = player.make_request(episode, SamplingParams())
    (sampled,) = Straight().generate_blocking([request])
    player.record_step(
        episode, request, sampled, player.read_reply(sampled), Turn(second, info={"num_actions": 3})
    )
    assert episode.status is None
    episode.status = Status.TRUNCATED
    assert player.build_trajectory(episode, 0.0).final_state == second


def experts(noise: float, chunk: int, count: int = 6) -> list:  # type: ignore[type-arg]
    envs = EnvBatch(NAME, {}, 4)
    rollout = Rollout(envs, RobotPlayer(NAME), ExpertSampler(envs.envs, noise=noise))
    return demonstrate_robot(rollout, [PointEnv.make_task(None, i) for i in range(count)], 0, chunk)


def test_demonstrations_begin_at_every_place_of_a_chunk_and_show_every_state_once() -> None:
    plain, shown = experts(0.2, 1, count=1), experts(0.2, 3, count=1)
    (whole,) = plain
    assert len(shown) == 3 and len(whole.steps) > 3
    states = [step.state for step in whole.steps]
    seen = [step.state for part in shown for step in part.steps]
    assert all(state in seen for state in states) and len(seen) == len(states)
    for begin, part in enumerate(shown):
        actions = np.concatenate([step.action.chunk for step in part.steps])
        expected = np.concatenate([step.action.chunk for step in whole.steps[begin:]])
        assert np.array_equal(actions, expected)
        assert part.total_reward == whole.total_reward == 1.0
        assert all(step.behavior_logprobs.size == 0 and not step.action.draws for step in part.steps)


def test_noise_moves_the_experts_actions_and_it_still_arrives() -> None:
    for step in (step for t in experts(0.0, 1) for step in t.steps):
        way = step.state.arrays["state"] - step.state.arrays["proprio"]
        np.testing.assert_allclose(step.action.chunk[0], np.clip(way / STRIDE, -1, 1), atol=1e-5)
    shaken = experts(0.5, 1)
    assert all(t.status is Status.SUCCESS for t in shaken)
    actions = np.concatenate([step.action.chunk for t in shaken for step in t.steps])
    assert abs(actions).max() <= 1.0
    again = experts(0.5, 1)
    assert [t.info["num_actions"] for t in again] == [t.info["num_actions"] for t in shaken]


def test_a_short_demonstration_is_one_chunk_per_place() -> None:
    (whole,) = experts(0.0, 1, count=1)
    assert len(regroup_into_chunks(whole, 100)) == len(whole.steps)


def test_an_env_without_an_expert_has_no_demonstrations() -> None:
    class Silent(PointEnv):
        has_oracle = False

    with pytest.raises(ConfigError, match="no scripted expert"):
        ExpertSampler([Silent()])
