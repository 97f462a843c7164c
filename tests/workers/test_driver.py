"""The driver: batches go on by themselves, failures cost their own episodes, every job is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.small import small_components
from tests.workers.devices import EchoGenerator, ListFeed, MortalSimulator

from stepwell.core import Split, Status, Task, WorkerError
from stepwell.rollout import Job
from stepwell.workers.driver import MAX_FAILURES, Driver, PlannedEpisode
from stepwell.workers.in_process import LocalGenerator, LocalSimulator
from stepwell.workers.modelled import (
    ModelledGenerator,
    ModelledHardware,
    ModelledPlayer,
    ModelledSimulator,
    run_virtually,
)
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import ActionRequest, Shard, split_evenly


def jobs(count: int, turns: int = 3) -> list[Job]:
    return [Job(Task("modelled", {"turns": turns + i % 3}), f"g{i}", i) for i in range(count)]


async def played(driver: Driver, feed: ListFeed) -> None:
    """Run until every job of the feed has a trajectory that can be learnt from."""
    feed.driver = driver
    running = asyncio.ensure_future(driver.run())
    whole = asyncio.ensure_future(feed.whole.wait())
    await asyncio.wait([running, whole], return_when=asyncio.FIRST_COMPLETED)
    driver.stop()
    whole.cancel()
    await running


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    chance=st.sampled_from([0.0, 0.05, 0.2]),
    lock_step=st.booleans(),
    env_batches=st.integers(1, 3),
    generator_fails=st.lists(st.integers(0, 30), max_size=4),
)
def test_every_started_episode_is_accounted_for_exactly_once(
    seed: int, chance: float, lock_step: bool, env_batches: int, generator_fails: list[int]
) -> None:
    model = ModelledHardware(num_envs=12, num_simulators=2, env_batches=env_batches, seed=seed)
    feed = ListFeed(jobs(20))

    async def work() -> Driver:
        simulators = [MortalSimulator(model, i, chance) for i in range(2)]
        generators = [EchoGenerator(0, fails=generator_fails), ModelledGenerator(model, 1)]
        queue = RequestQueue(generators, max_batch=6, max_wait_ms=500, shard=split_evenly)
        driver = Driver(simulators, queue, ModelledPlayer(), feed, lock_step=lock_step)
        await played(driver, feed)
        return driver

    counts = run_virtually(work).counts
    assert counts.num_abandoned == 0
    assert counts.num_started == counts.num_finished + counts.num_failed == len(feed.outcomes)
    whole = [o for o in feed.outcomes if o.trajectory.status is Status.SUCCESS]
    assert sorted(o.job.seed for o in whole) == list(range(20))  # each job once
    for outcome in whole:  # and with all its turns: no step of a life that was lost
        assert len(outcome.trajectory.steps) == outcome.job.task.content["turns"]
    lost = [o for o in feed.outcomes if o.trajectory.status is Status.INFRA_ERROR]
    assert all(o.is_lost and o.trajectory.error for o in lost)
    assert bool(lost) <= bool(chance or generator_fails)


def each_to_its_own(requests: Sequence[ActionRequest], loads: object) -> list[Shard]:
    return [Shard((i,), ask.job.seed) for i, ask in enumerate(requests)]


def test_environments_go_on_as_soon_as_their_own_bundle_is_answered() -> None:
    slow, quick = EchoGenerator(0, latency=10.0), EchoGenerator(1, latency=1.0)
    model = ModelledHardware(num_envs=2, num_simulators=1, env_batches=1, simulator=0.2, sigma=0)
    feed = ListFeed([Job(Task("modelled", {"turns": 5}), f"g{i}", i) for i in range(2)])

    async def work() -> None:
        queue = RequestQueue([slow, quick], max_batch=1, max_wait_ms=0, shard=each_to_its_own)
        await played(Driver([ModelledSimulator(model, 0)], queue, ModelledPlayer(), feed), feed)

    run_virtually(work)
    assert len(slow.calls) == len(quick.calls) == 5
    assert quick.calls[-1][0] == pytest.approx(4 * 1.1)  # it never waited for its neighbour


def test_in_lock_step_every_turn_waits_for_all_and_is_one_call() -> None:
    generator = EchoGenerator(0, latency=9.0)
    model = ModelledHardware(num_envs=8, num_simulators=2, env_batches=2, simulator=22.0, sigma=0)
    feed = ListFeed(jobs(8, turns=3))

    async def work() -> None:
        queue = RequestQueue([generator], max_batch=1, max_wait_ms=0)
        simulators = [ModelledSimulator(model, i) for i in range(2)]
        await played(Driver(simulators, queue, ModelledPlayer(), feed, lock_step=True), feed)

    run_virtually(work)
    assert [len(numbers) for _, numbers in generator.calls] == [8, 8, 8, 5, 2]  # three, four and five turns
    starts = [at for at, _ in generator.calls]
    assert starts[:3] == pytest.approx([0.0, 31.0, 62.0])


def test_an_episode_that_takes_too_long_is_cut() -> None:
    class Shard(ListFeed):
        def take_next(self) -> PlannedEpisode | None:
            start = super().take_next()
            return None if start is None else replace(start, timeout_s=25.0)

    feed = Shard([Job(Task("modelled", {"turns": 9}), "g", 0)])
    model = ModelledHardware(num_envs=1, num_simulators=1, env_batches=1, sigma=0, simulator=9.0)

    async def work() -> None:
        queue = RequestQueue([EchoGenerator(0, latency=1.0)], max_batch=1, max_wait_ms=0)
        await played(Driver([ModelledSimulator(model, 0)], queue, ModelledPlayer(), feed), feed)

    run_virtually(work)
    (outcome,) = feed.outcomes
    assert outcome.trajectory.status is Status.TRUNCATED and len(outcome.trajectory.steps) == 3


@pytest.mark.parametrize("who", ["simulator", "generator"])
def test_a_worker_that_never_answers_well_ends_the_rollout_with_its_error(who: str) -> None:
    model = ModelledHardware(num_envs=2, num_simulators=1, env_batches=1)
    feed = ListFeed(jobs(2))
    simulator = MortalSimulator(model, 0, 1.0 if who == "simulator" else 0.0)
    generator = EchoGenerator(0, fails=range(10**4) if who == "generator" else ())

    async def work() -> None:
        queue = RequestQueue([generator], max_batch=2, max_wait_ms=0)
        await played(Driver([simulator], queue, ModelledPlayer(), feed), feed)

    with pytest.raises(
        WorkerError, match=f"{MAX_FAILURES} calls failed in a row; the last error: {who} 0 died"
    ):
        run_virtually(work)


def test_what_is_under_way_at_a_stop_is_counted_as_not_played() -> None:
    model = ModelledHardware(num_envs=4, num_simulators=1, env_batches=1)
    feed = ListFeed(jobs(4, turns=1000))

    async def work() -> Driver:
        queue = RequestQueue([EchoGenerator(0)], max_batch=4, max_wait_ms=0)
        driver = Driver([ModelledSimulator(model, 0)], queue, ModelledPlayer(), feed)
        running = asyncio.ensure_future(driver.run())
        await asyncio.sleep(500)
        driver.stop()
        await running
        return driver

    driver = run_virtually(work)
    assert driver.counts.num_abandoned == driver.counts.num_started == 4
    assert feed.outcomes == [] and driver.num_live == 0


@pytest.mark.parametrize("lock_step", [True, False])
async def test_real_envs_and_a_real_engine_record_what_the_plain_rollout_records(lock_step: bool) -> None:
    components = small_components("recipe.name=grpo")
    tasks = components.tasks(Split.TRAIN, 4, 0)
    wanted = [Job(task, task.id, 7 * i + k) for i, task in enumerate(tasks) for k in range(2)]
    params = components.sampling_params(1.0)
    expected = {t.info["seed"]: t for t in components.runner.rollout.run(wanted, params).trajectories}

    class Sampled(ListFeed):
        def take_next(self) -> PlannedEpisode | None:
            start = super().take_next()
            return None if start is None else replace(start, params=params)

    feed = Sampled(list(wanted))
    config = components.config
    simulators = [LocalSimulator(f"s{i}", config.env.name, config.env.options, 2, 1) for i in range(2)]
    generator = LocalGenerator("g", components.engine)
    queue = RequestQueue([generator], max_batch=3, max_wait_ms=1, max_inflight=2)
    await played(Driver(simulators, queue, components.backend.player, feed, lock_step=lock_step), feed)
    for simulator in simulators:
        await simulator.close()
    components.close()
    assert len(feed.outcomes) == 8
    for outcome in feed.outcomes:
        twin, found = expected[outcome.job.seed], outcome.trajectory
        assert found.status is twin.status and found.total_reward == pytest.approx(twin.total_reward)
        assert [s.action.text for s in found.steps] == [s.action.text for s in twin.steps]  # type: ignore[union-attr]
