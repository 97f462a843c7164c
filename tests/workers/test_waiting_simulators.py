"""Simulators of environments that wait: batches overlap, and faults are found as in any other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.envs.waiting_envs import IN_THREADS, ON_LOOP, WAITING, InTurn, Meeting
from tests.workers.traces import nothing_left

from stepwell.core import Task, WorkerError
from stepwell.workers import ProcessSimulator
from stepwell.workers.in_process import LocalSimulator

GO = ("go",)


def walks(count: int) -> list[Task]:
    return [InTurn.make_task(None, seed) for seed in range(count)]


@asynccontextmanager
async def simulator(name: str, **more: Any) -> AsyncIterator[ProcessSimulator]:
    with nothing_left():
        sim = ProcessSimulator("sim", name, {}, num_batches=2, batch_size=2, **more)
        try:
            for batch in (0, 1):
                await sim.reset(batch, [0, 1], walks(2), [0, 1])
            yield sim
        finally:
            await sim.close()


@pytest.mark.parametrize("name", WAITING)
async def test_all_batches_of_a_simulator_wait_at_once(name: str) -> None:
    async with simulator(name) as sim:  # four meet, two of each batch
        calls = [sim.step(batch, [1, 0], [("meet",), ("meet", "go")]) for batch in (0, 1)]
        first, second = await asyncio.gather(*calls)
        assert [turn.error for turn in first + second] == [None] * 4
        assert [turn.info["num_actions"] for turn in first] == [1, 2]
        lost = await sim.step(0, [0, 1], [("exit",), GO])
        assert "SystemExit" in str(lost[0].error) and lost[1].error is None
        assert sim.read_health().num_restarts == 0


@pytest.mark.parametrize("name", WAITING)
async def test_all_batches_of_a_local_simulator_wait_at_once(name: str) -> None:
    Meeting.expect(4)
    sim = LocalSimulator("sim", name, {}, num_batches=2, batch_size=2)
    for batch in (0, 1):
        await sim.reset(batch, [0, 1], walks(2), [0, 1])
    first, second = await asyncio.gather(*(sim.step(n, [0, 1], [("meet",)] * 2) for n in (0, 1)))
    assert [turn.error for turn in first + second] == [None] * 4
    await sim.close()


async def test_one_that_hangs_is_found_although_the_others_go_on() -> None:
    async with simulator(ON_LOOP, hang_s=1.5) as sim:
        stuck = asyncio.create_task(sim.step(0, [0], [("hang",)]))
        while not stuck.done():
            try:
                await sim.step(1, [0, 1], [GO, GO])
            except WorkerError:
                break
        with pytest.raises(WorkerError, match="made no progress with a call"):
            await stuck
        (turn,) = await sim.reset(0, [0], walks(1), [0])
        assert turn.error is None and sim.read_health().num_restarts == 1


async def test_killed_while_environments_wait_every_call_raises_and_the_next_reset_works() -> None:
    async with simulator(IN_THREADS) as sim:
        calls = [asyncio.create_task(sim.step(batch, [0], [("hang",)])) for batch in (0, 1)]
        assert (await sim.step(0, [1], [GO]))[0].error is None  # beside the one that waits
        pid = sim.read_health().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(error) for error in found] == [f"worker sim (pid {pid}) was killed by SIGKILL"] * 2
        (turn,) = await sim.reset(0, [0], walks(1), [0])
        assert turn.error is None


async def test_closing_does_not_wait_for_one_that_hangs() -> None:
    async with simulator(IN_THREADS) as sim:
        call = asyncio.create_task(sim.step(0, [0], [("hang",)]))
        await sim.step(1, [0], [GO])
        await sim.close()
        with pytest.raises(WorkerError):
            await call
