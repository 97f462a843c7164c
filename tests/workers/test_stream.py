"""Finished episodes are stored together where nobody waits for them, and at once where a trainer does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stepwell.core import Task, Trajectory
from stepwell.rollout import Job
from stepwell.workers import stream as module
from stepwell.workers.driver import Driver
from stepwell.workers.modelled import (
    ModelledGenerator,
    ModelledHardware,
    ModelledPlayer,
    ModelledSimulator,
    run_virtually,
)
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.staleness import GroupBuffer
from stepwell.workers.stream import GroupStream

LONG_S = 1000.0  # by far longer than all episodes of these tests take
MODEL = ModelledHardware(sigma=0.0, num_simulators=1, env_batches=1, num_envs=4, turns=(2, 2))


class Kept:
    """A stream over modelled devices, and what it stored, when."""

    def __init__(self, groups_per_update: int, num_updates: int) -> None:
        self.calls: list[tuple[float, list[str]]] = []
        buffer = GroupBuffer("stream", groups_per_update, max_staleness=9, num_updates=num_updates)
        self.stream = GroupStream(buffer, lambda n: [Job(Task("modelled", {"turns": 2}), f"g{n}", n)])
        self.stream.store = self.keep
        simulators = [ModelledSimulator(MODEL, 0)]
        self.queue = RequestQueue([ModelledGenerator(MODEL, 0)], max_batch=4, max_wait_ms=0.0)
        self.stream.start(Driver(simulators, self.queue, ModelledPlayer(), self.stream))

    async def keep(self, trajectories: Sequence[Trajectory], completed: Sequence[str]) -> None:
        assert [t.group for t in trajectories] == list(completed)
        self.calls.append((asyncio.get_running_loop().time(), sorted(completed)))

    async def close(self) -> None:
        await self.stream.close()
        self.queue.close()


def test_a_trainer_that_waits_for_the_storing_alone_gets_its_groups_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LINGER_S", LONG_S)

    async def run() -> tuple[float, list[str]]:
        kept = Kept(groups_per_update=4, num_updates=1)
        taken = await kept.stream.take_batch()
        now = asyncio.get_running_loop().time()
        await kept.close()
        assert kept.calls[0][0] == now
        return now, sorted(group.name for group in taken.groups)

    now, names = run_virtually(run)
    assert 0.0 < now < LONG_S and names == ["g0", "g1", "g2", "g3"]


def test_what_nobody_waits_for_is_stored_together_within_the_time_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LINGER_S", LONG_S)

    async def run() -> list[tuple[float, list[str]]]:
        kept = Kept(groups_per_update=4, num_updates=2)
        await asyncio.sleep(10 * LONG_S)
        await kept.close()
        return kept.calls

    ((when, names),) = run_virtually(run)
    assert LONG_S < when < 2 * LONG_S and names == [f"g{n}" for n in range(8)]


def test_closing_stores_what_is_finished_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", LONG_S)

    async def run() -> tuple[float, list[str]]:
        kept = Kept(groups_per_update=4, num_updates=2)
        while not kept.stream._num_unstored:
            await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await kept.close()
        (_, names), *_ = kept.calls
        return asyncio.get_running_loop().time() - began, names

    took_s, names = run_virtually(run)
    assert took_s < LONG_S / 2 and names
