"""Workers are killed at random while episodes are played: everything is accounted for, nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter

import pytest
from tests.workers.odd_envs import ODD, Odd
from tests.workers.traces import nothing_left

from stepwell.core import WorkerError
from stepwell.workers import ProcessSimulator

NUM_KILLS, NUM_TURNS = 50, 20
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)


class Players:
    """One endless player per environment batch; counts how its episodes end."""

    def __init__(self) -> None:
        self.is_over = False
        self.count: Counter[str] = Counter()

    async def play(self, sim: ProcessSimulator, batch: int) -> None:
        seed = 0
        while not self.is_over:
            seed += 1
            self.count["begun"] += 2
            try:
                await self._episodes(sim, batch, seed)
            except WorkerError:
                self.count["lost"] += 2

    async def _episodes(self, sim: ProcessSimulator, batch: int, seed: int) -> None:
        tasks = [Odd.make_task(None, seed + place) for place in range(2)]
        turns = await sim.reset(batch, [0, 1], tasks, [seed, seed + 1])
        for turn in range(NUM_TURNS):
            assert [t.observation.text for t in turns] == [f"count {seed + turn}", f"count {seed + 1 + turn}"]  # type: ignore[union-attr]
            turns = await sim.step(batch, [0, 1], [("go",), ("go",)])
            if any(t.error is not None for t in turns):
                assert all(isinstance(t.error, WorkerError) for t in turns), "all of them are lost together"
                self.count["lost"] += 2
                return
        self.count["finished"] += 2


@pytest.mark.slow
async def test_fifty_kills_at_random_lose_no_count_and_leave_nothing() -> None:
    rng = random.Random(0)
    with nothing_left():
        sims = [ProcessSimulator(f"sim{n}", ODD, {}, 2, 2) for n in range(2)]
        players = Players()
        playing = [asyncio.create_task(players.play(sim, batch)) for sim in sims for batch in range(2)]
        for number in range(NUM_KILLS):
            sim = sims[number % 2]  # while one starts again, the other is the next
            await sim.start()
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            pid = sim.read_health().pid
            assert pid is not None
            os.kill(pid, rng.choice(SIGNALS))
            while sim.read_health().pid == pid:
                await asyncio.sleep(0.005)
        await asyncio.gather(*(sim.start() for sim in sims))
        await asyncio.sleep(0.2)
        players.is_over = True
        await asyncio.gather(*playing)
        assert sum(sim.read_health().num_restarts for sim in sims) == NUM_KILLS
        for sim in sims:
            await sim.close()
    count = players.count
    assert count["begun"] == count["finished"] + count["lost"]
    assert count["lost"] >= NUM_KILLS and count["finished"] > 0
