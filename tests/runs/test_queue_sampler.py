"""The sampler of an agent's gateway: calls from another event loop go to the generators' queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests.workers.engines import SmallEngine

from stepwell.core import ArrayState, Request, Sampled, Task, WorkerError
from stepwell.rollout.jobs import Job
from stepwell.runs.build.agent_driver import GENERATOR_TRIES, QueueSampler
from stepwell.workers.in_process import LocalGenerator
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import ActionRequest, split_evenly


class DyingGenerator(LocalGenerator):
    """Fails its first calls as a process does that dies."""

    num_deaths = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        if self.num_deaths:
            self.num_deaths -= 1
            raise WorkerError(f"{self.name} died")
        return await super().generate(requests)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of the workers, in a thread of its own."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def make_sampler(
    loop: asyncio.AbstractEventLoop, *generators: LocalGenerator
) -> tuple[QueueSampler, list[tuple[str, int]]]:
    queue = RequestQueue(generators, max_batch=8, max_wait_ms=1, shard=split_evenly)
    waits: list[tuple[str, int]] = []
    job = Job(Task("t", {}), "g", 1)
    sampler = QueueSampler(
        queue,
        loop,
        lambda request: ActionRequest(request, job, 0, 0),
        lambda name, change: waits.append((name, change)),
    )
    return sampler, waits


def make_requests(*values: float, order: str = "") -> list[Request]:
    states = [ArrayState({"x": np.array([value], np.float32)}, order) for value in values]
    return [Request(state, conversation="talk") for state in states]


def test_answers_are_in_order_whichever_generator_gave_them(loop: asyncio.AbstractEventLoop) -> None:
    sampler, waits = make_sampler(loop, *(LocalGenerator(f"g{i}", SmallEngine(1.0)) for i in range(2)))
    found = asyncio.run(sampler.generate(make_requests(1.0, 2.0, 3.0)))
    assert [float(sample.action.chunk[0, 0]) for sample in found] == [1.0, 2.0, 3.0]  # type: ignore[union-attr]
    assert waits == [("talk", 1), ("talk", -1)]


@pytest.mark.parametrize("num_deaths", [GENERATOR_TRIES - 1, GENERATOR_TRIES])
def test_a_call_is_asked_again_after_a_death_but_not_for_ever(
    num_deaths: int, loop: asyncio.AbstractEventLoop
) -> None:
    generator = DyingGenerator("g", SmallEngine(1.0))
    generator.num_deaths = num_deaths
    sampler, waits = make_sampler(loop, generator)
    if num_deaths < GENERATOR_TRIES:
        assert len(asyncio.run(sampler.generate(make_requests(1.0)))) == 1
    else:
        with pytest.raises(WorkerError, match="g died"):
            asyncio.run(sampler.generate(make_requests(1.0)))
    assert generator.num_deaths == 0 and sum(change for _, change in waits) == 0


def test_closing_refuses_calls_under_way_and_later_ones(loop: asyncio.AbstractEventLoop) -> None:
    sampler, waits = make_sampler(loop, LocalGenerator("g", SmallEngine(1.0)))

    async def close_under_way() -> None:
        call = asyncio.ensure_future(sampler.generate(make_requests(1.0, order="until 1")))
        while not waits:
            await asyncio.sleep(0.001)
        loop.call_soon_threadsafe(sampler.close)
        with pytest.raises(WorkerError, match="plays no more episodes"):
            await call
        with pytest.raises(WorkerError, match="plays no more episodes"):
            await sampler.generate(make_requests(1.0))

    asyncio.run(close_under_way())
    assert waits == [("talk", 1), ("talk", -1)]
