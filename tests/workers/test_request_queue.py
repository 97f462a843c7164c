"""The request queue: bundles are never split, nothing is lost, every request is answered once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workers.devices import EchoGenerator, ask, number_of

from stepwell.core import WorkerError
from stepwell.engines.batcher import RequestBundle
from stepwell.workers.modelled import run_virtually
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import SHARDS, ActionRequest


@settings(max_examples=60, deadline=None)
@given(
    posts=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 9)), min_size=1, max_size=25),
    max_batch=st.integers(1, 12),
    max_wait=st.sampled_from([0.0, 0.5, 2.0]),
    shard=st.sampled_from(sorted(SHARDS)),
    num_generators=st.integers(1, 3),
    max_inflight=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_every_request_is_answered_once_and_bundles_stay_whole(
    posts: list[tuple[float, int]],
    max_batch: int,
    max_wait: float,
    shard: str,
    num_generators: int,
    max_inflight: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    generators = [EchoGenerator(i, float(rng.uniform(0.1, 3))) for i in range(num_generators)]
    bundles: list[tuple[int, ...]] = []

    async def work() -> None:
        queue = RequestQueue(
            generators,
            max_batch=max_batch,
            max_wait_ms=1000 * max_wait,
            shard=SHARDS[shard],
            max_inflight=max_inflight,
        )
        waiting, number = [], 0
        for pause, count in posts:
            await asyncio.sleep(pause)
            requests = [ask(number + i) for i in range(count)]
            number += count
            for posted in queue.post_requests(requests):
                expected = [number - count + i for i in posted.indices]
                bundles.append(tuple(expected))
                waiting.append((posted.answer, expected))
        for answer, expected in waiting:
            assert [number_of(sample) for sample in await answer] == expected
        assert queue.num_waiting == 0 and queue.counts.num_requests == number

    run_virtually(work)
    calls = [tuple(numbers) for generator in generators for _, numbers in generator.calls]
    asked = sorted(n for call in calls for n in call)
    assert asked == list(range(len(asked)))  # each once
    for call in calls:
        inside = [bundle for bundle in bundles if set(bundle) & set(call)]
        assert sorted(n for bundle in inside for n in bundle) == sorted(call)  # whole bundles
        assert len(call) <= max_batch or len(inside) == 1
    assert all(generator.most_underway <= max_inflight for generator in generators)


def firing(
    max_batch: int, max_wait: float, posts: list[tuple[float, int]], **more: object
) -> list[tuple[float, int]]:
    """When batches went out and how large, for bundles posted at these times."""
    generator = EchoGenerator(0, latency=0.0)

    async def work() -> None:
        queue = RequestQueue([generator], max_batch=max_batch, max_wait_ms=1000 * max_wait, **more)  # type: ignore[arg-type]
        number, answers = 0, []
        for at, count in posts:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            answers += [
                posted.answer for posted in queue.post_requests([ask(number + i) for i in range(count)])
            ]
            number += count
        await asyncio.gather(*answers)

    run_virtually(work)
    return [(round(at, 6), len(numbers)) for at, numbers in generator.calls]


def test_a_batch_goes_out_when_it_is_full_or_its_oldest_bundle_is_old() -> None:
    assert firing(4, 10.0, [(0, 2), (1, 2)]) == [(1.0, 4)]  # by size
    assert firing(8, 10.0, [(0, 2), (1, 2)]) == [(10.0, 4)]  # by age of the first
    assert firing(3, 10.0, [(0, 2), (1, 2)]) == [(1.0, 2), (11.0, 2)]  # the second does not fit: not split


def by_size(bundle: RequestBundle[ActionRequest]) -> int:
    return len(bundle)


def test_a_priority_function_orders_what_waits() -> None:
    generator = EchoGenerator(0, latency=1.0)

    async def work() -> None:
        queue = RequestQueue([generator], max_batch=4, max_wait_ms=0, priority=by_size)
        posted = (
            queue.post_requests([ask(0)])
            + queue.post_requests([ask(1), ask(2), ask(3)])
            + queue.post_requests([ask(4)])
        )
        await asyncio.gather(*(one.answer for one in posted))

    run_virtually(work)
    assert [numbers for _, numbers in generator.calls] == [[0], [4, 1, 2, 3]]


def test_bundles_for_one_generator_do_not_go_to_another() -> None:
    generators = [EchoGenerator(i) for i in range(2)]

    async def work() -> None:
        queue = RequestQueue(generators, max_batch=8, max_wait_ms=0, shard=SHARDS["even"])
        await asyncio.gather(*(one.answer for one in queue.post_requests([ask(i) for i in range(4)])))

    run_virtually(work)
    assert [generator.calls for generator in generators] == [[(0.0, [0, 1])], [(0.0, [2, 3])]]


def test_a_generator_that_dies_fails_its_own_bundles_only() -> None:
    async def work() -> list[object]:
        queue = RequestQueue([EchoGenerator(fails=[0])], max_batch=2, max_wait_ms=0)
        posted = queue.post_requests([ask(0), ask(1)]) + queue.post_requests([ask(2)])
        return await asyncio.gather(*(one.answer for one in posted), return_exceptions=True)

    failed, fine = run_virtually(work)
    assert isinstance(failed, WorkerError) and isinstance(fine, list)
    assert [number_of(sample) for sample in fine] == [2]


def test_in_lock_step_every_generator_is_called_once_with_an_equal_share() -> None:
    generators = [EchoGenerator(i) for i in range(3)]

    async def work() -> list[list[int]]:
        queue = RequestQueue(generators, max_batch=1, max_wait_ms=9e9)
        posted = queue.post_at_once([ask(i) for i in range(7)])
        return [[number_of(s) for s in await one.answer] for one in posted]

    assert run_virtually(work) == [[0, 1], [2, 3], [4, 5, 6]]
    assert [len(generator.calls) for generator in generators] == [1, 1, 1]


def test_waiting_time_is_what_bundles_waited() -> None:
    async def work() -> float:
        queue = RequestQueue([EchoGenerator()], max_batch=9, max_wait_ms=2000)
        await asyncio.gather(*(one.answer for one in queue.post_requests([ask(0), ask(1)])))
        return queue.counts.waited_s

    assert run_virtually(work) == pytest.approx(4.0)
