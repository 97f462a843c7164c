"""Robot environments that share one vectorised simulator: the episodes of each are its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from tests.runs.test_robots import config as robot_config

from stepwell.core import ConfigError, InputError, Status
from stepwell.envs.batch import EnvBatch
from stepwell.envs.check import check_env
from stepwell.envs.registry import find_env_type, make_env
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train

PENDULUM, DRONES = "gymnasium:Pendulum-v1", "gymnasium:StepwellDrones-v0"


class Drones(VectorEnv):
    """Points in a plane that are pushed towards the origin, all of them by one operation on arrays."""

    def __init__(self, num_envs: int = 1, **_: Any) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.at = np.zeros((num_envs, 2), np.float32)
        self.num_steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        for place in np.flatnonzero(options["reset_mask"]):
            chance = np.random.default_rng(seed[place] if seed is not None else None)
            self.at[place] = chance.uniform(-1, 1, 2)
        return self.at.copy(), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.num_steps += 1
        if self.num_steps > 10_000:
            raise RuntimeError("the device was lost")
        self.at += 0.1 * actions
        far = np.linalg.norm(self.at, axis=1)
        nothing = np.zeros(self.num_envs, bool)
        return self.at.copy(), -far, far > 3, nothing, {"success": far < 0.15}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("StepwellDrones-v0", vector_entry_point=Drones, max_episode_steps=40)
    yield
    del gymnasium.registry["StepwellDrones-v0"]


def make_tasks(name: str, count: int) -> list[Any]:
    kind = find_env_type(name)
    return [kind.make_task(kind.Options(), seed) for seed in range(count)]


@pytest.mark.parametrize("name", [PENDULUM, DRONES])
def test_the_contract_of_robot_environments_holds(name: str) -> None:
    report = check_env(name, {}, num_tasks=3)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", [PENDULUM, DRONES])
def test_a_place_never_depends_on_its_neighbours(name: str) -> None:
    """Episodes that begin at different times in one simulator are those of environments that are alone."""
    tasks, rng = make_tasks(name, 6), np.random.default_rng(0)
    alone = [make_env(name) for _ in range(3)]
    with EnvBatch(name, {}, 3) as batch:
        running: dict[int, int] = {}
        waiting, num_turns = list(range(6)), 0
        while waiting or running:
            free = [place for place in range(3) if place not in running]
            begun = free[: 1 if num_turns % 3 else 2][: len(waiting)]
            for place in begun:
                running[place] = waiting.pop(0)
            turns = batch.reset([tasks[running[place]] for place in begun], begun)
            for place, turn in zip(begun, turns, strict=True):
                first, _ = alone[place].reset(options={"task": tasks[running[place]]})
                assert np.array_equal(first.arrays["proprio"], turn.observation.arrays["proprio"])
            places = sorted(running)
            chunks = rng.uniform(-1, 1, (len(places), 4, alone[0].description.action_dim)).astype(np.float32)
            turns = batch.step(places, list(chunks), with_state=True)
            for place, chunk, turn in zip(places, chunks, turns, strict=True):
                seen, reward, terminated, truncated, info = alone[place].step(chunk)
                assert turn.error is None and turn.state
                assert np.array_equal(seen.arrays["proprio"], turn.observation.arrays["proprio"])
                assert (reward, terminated, truncated) == (turn.reward, turn.terminated, turn.truncated)
                assert info == turn.info
                if terminated:
                    del running[place]
            num_turns += 1


def test_a_place_that_is_left_out_loses_its_episode_and_no_other_does() -> None:
    tasks = make_tasks(DRONES, 3)
    still = np.zeros((1, 2), np.float32)
    with EnvBatch(DRONES, {}, 3) as batch:
        batch.reset(tasks)
        assert [turn.error for turn in batch.step([0, 2], [still, still])] == [None, None]
        failed, fine = batch.step([1, 2], [still, still])
        assert "is over; call reset" in str(failed.error) and fine.error is None
        with pytest.raises(InputError, match="must have one length"):
            batch.reset(tasks[:2], [0, 1])
            batch.step([0, 1], [still, np.zeros((2, 2), np.float32)])


def test_a_wrong_chunk_costs_one_episode_and_a_broken_simulator_all_until_the_next_reset() -> None:
    tasks = make_tasks(DRONES, 2)
    still = np.zeros((1, 2), np.float32)
    with EnvBatch(DRONES, {}, 2) as batch:
        batch.reset(tasks)
        wrong, fine = batch.step([0, 1], [np.full((1, 2), np.nan, np.float32), still])
        assert "nan or infinity" in str(wrong.error) and fine.error is None
        env: Any = batch.envs[0]
        env._shared.open()._envs.num_steps = 10_000
        batch.reset(tasks)
        assert ["device was lost" in str(turn.error) for turn in batch.step([0, 1], [still, still])] == [
            True
        ] * 2
        batch.reset(tasks)
        assert [turn.error for turn in batch.step([0, 1], [still, still])] == [None, None]


def test_many_places_cost_one_call_of_their_simulator_per_action() -> None:
    with EnvBatch(DRONES, {}, 256) as batch:
        batch.reset(make_tasks(DRONES, 256))
        turns = batch.step(list(range(256)), [np.zeros((4, 2), np.float32)] * 256)
        env: Any = batch.envs[0]
        assert env._shared.open()._envs.num_steps == 4
    assert {turn.info["num_actions"] for turn in turns} <= {1, 4}  # 1: it begins at its goal


def test_a_vector_environment_that_resets_by_itself_is_refused() -> None:
    class Eager(Drones):
        def __init__(self, num_envs: int = 1, **_: Any) -> None:
            super().__init__(num_envs)
            self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    gymnasium.register("StepwellEager-v0", vector_entry_point=Eager)
    try:
        with pytest.raises(ConfigError, match="resets places by itself"):
            make_env("gymnasium:StepwellEager-v0").reset(seed=0)
    finally:
        del gymnasium.registry["StepwellEager-v0"]


@pytest.mark.parametrize("mode", ["off", pytest.param("stream", marks=pytest.mark.slow)])
def test_a_robot_trains_in_them_in_step_and_streaming(mode: str, tmp_path: Path) -> None:
    folder = train(
        robot_config(
            f"env.name={PENDULUM}",
            "env.options={max_actions=12, success_reward=-60}",
            "warm_start.num_demos=0",
            f"workers.mode={mode}",
            "workers.simulators={num_workers=1, env_batches=1, batch_size=4}",
            "workers.generators={num_workers=2, shard='even', max_batch=2}",
            "train={num_updates=2, tasks_per_update=4, group_size=2}",
            "eval.num_tasks=4",
            "monitor.report=false",
            folder=tmp_path,
        )
    )
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        found = list(pool.find(Filter(channel="train")))
    assert len(found) >= 16 and {entry.status for entry in found} <= {Status.SUCCESS, Status.FAILURE}
