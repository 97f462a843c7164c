"""The dynamic batcher, to the tick of a fake clock: when it fires, with whom, in what order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import ConfigError, InputError, QueueFullError
from stepwell.engines.batcher import BatchQueue, DynamicBatcher, RequestBundle


def slot(name: str, size: int, arrived_ms: float) -> RequestBundle[str]:
    return RequestBundle([f"{name}{i}" for i in range(size)], arrived_ms / 1000)


def names(batch: list[RequestBundle[str]]) -> str:
    return " ".join(s.items[0][0] for s in batch)


def queue_of(*slots: RequestBundle[str], **settings: Any) -> BatchQueue[str]:
    queue: BatchQueue[str] = BatchQueue(**{"max_batch_size": 4, "max_wait_ms": 10.0, **settings})
    for s in slots:
        queue.push(s)
    return queue


def test_it_fires_when_the_batch_is_full_and_not_before() -> None:
    queue = queue_of(slot("a", 2, 0), slot("b", 1, 1))
    assert queue.pop_ready(0.002) == []
    queue.push(slot("c", 1, 2))
    assert names(queue.pop_ready(0.002)) == "a b c"
    assert queue.num_waiting == 0


def test_it_fires_at_the_very_tick_the_oldest_has_waited_its_time() -> None:
    queue = queue_of(slot("a", 1, 5), slot("b", 1, 9))
    assert queue.get_deadline() == pytest.approx(0.015)
    assert queue.pop_ready(0.01499) == []
    assert names(queue.pop_ready(queue.get_deadline() or 0)) == "a b"
    assert queue.get_deadline() is None


def test_a_slot_is_never_split_and_nothing_small_overtakes_it() -> None:
    queue = queue_of(slot("a", 3, 0), slot("b", 2, 1), slot("c", 1, 2))
    assert names(queue.pop_ready(0.002)) == "a"  # b does not fit beside a; c may not jump ahead of b
    assert queue.num_waiting == 3
    assert names(queue.pop_ready(0.011)) == "b c"


def test_a_slot_larger_than_a_batch_is_sent_alone() -> None:
    queue = queue_of(slot("a", 6, 0), slot("b", 1, 0))
    batch = queue.pop_ready(0.0)
    assert names(batch) == "a" and len(batch[0]) == 6


def test_order_decides_who_goes_first_and_ties_go_by_arrival() -> None:
    queue = queue_of(
        slot("a", 2, 0), slot("b", 1, 1), slot("c", 2, 2), slot("d", 1, 3), order=lambda s: len(s)
    )
    assert names(queue.pop_ready(0.003)) == "b d a"


def test_a_batch_fired_by_the_clock_holds_the_oldest_whatever_the_order() -> None:
    queue = queue_of(
        slot("z", 3, 0), slot("a", 1, 5), slot("b", 1, 6), slot("c", 1, 7), order=lambda s: s.items
    )
    assert names(queue.pop_ready(0.010)) == "z a"


def test_a_full_queue_refuses_with_the_numbers() -> None:
    queue = queue_of(slot("a", 4, 0), max_queue=5)
    with pytest.raises(QueueFullError, match=r"4 of at most max_queue=5 samples wait, no room for 2"):
        queue.push(slot("b", 2, 0))
    queue.push(slot("c", 1, 0))
    assert queue.num_waiting == 5


def test_a_cancelled_slot_leaves_and_gives_its_room_back() -> None:
    first = slot("a", 3, 0)
    queue = queue_of(first, slot("b", 1, 4))
    assert queue.cancel(first) and not queue.cancel(first)
    assert queue.num_waiting == 1 and queue.get_deadline() == pytest.approx(0.014)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms"),
        ({"max_queue": 3}, "max_queue"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, float], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        queue_of(**settings)


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 30)), max_size=20), st.booleans())
def test_every_slot_leaves_once_whole_and_in_time(arrivals: list[tuple[int, int]], ordered: bool) -> None:
    tick = 1 / 1024  # a power of two, so that sums of ticks are exact
    order: Callable[[RequestBundle[int]], int] | None = (lambda s: -s.items[0]) if ordered else None
    queue: BatchQueue[int] = BatchQueue(4, 10 * tick * 1000, 1000, order)
    sent: list[tuple[RequestBundle[int], int]] = []
    waiting = sorted(enumerate(arrivals), key=lambda pair: pair[1][1])
    for now in range(60):
        while waiting and waiting[0][1][1] == now:
            index, (size, _) = waiting.pop(0)
            queue.push(RequestBundle([index] * size, now * tick))
        while batch := queue.pop_ready(now * tick):
            assert sum(map(len, batch)) <= 4 or len(batch) == 1
            sent += [(s, now) for s in batch]
    assert sorted(s.items[0] for s, _ in sent) == list(range(len(arrivals)))
    assert all(s.items == [s.items[0]] * arrivals[s.items[0]][0] for s, _ in sent)
    assert all(now - s.arrived_s / tick <= 10 for s, now in sent)


@dataclass
class FakeTimer:
    when: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time that moves when told to, with asyncio's timer interface."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        self.timers.append(FakeTimer(when, callback))
        return self.timers[-1]

    async def advance(self, ms: float) -> None:
        self.now += ms / 1000
        due = [timer for timer in self.timers if timer.when <= self.now]
        self.timers = [timer for timer in self.timers if timer.when > self.now]
        for timer in due:
            if not timer.cancelled:
                timer.callback()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Recorder:
    """An engine that answers when told to, and remembers what it was handed."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.batches: list[list[RequestBundle[str]]] = []
        inflight = settings.pop("max_inflight", None)
        self.batcher: DynamicBatcher[str, str] = DynamicBatcher(
            self.batches.append, queue_of(**settings), max_inflight=inflight, clock=self.clock
        )  # fmt: skip

    def answer(self, batch: int) -> None:
        for s in self.batches[batch]:
            if s.future is not None and not s.future.done():
                s.future.set_result([item.upper() for item in s.items])

    def sent(self) -> list[list[list[str]]]:
        return [[s.items for s in batch] for batch in self.batches]


async def test_submissions_of_many_tasks_become_one_batch_when_the_time_is_up() -> None:
    engine = Recorder()
    tasks = [asyncio.create_task(engine.batcher.submit([name])) for name in "ab"]
    await settle()
    await engine.clock.advance(9.9)
    assert engine.sent() == []
    await engine.clock.advance(0.2)
    assert engine.sent() == [[["a"], ["b"]]]
    engine.answer(0)
    assert await asyncio.gather(*tasks) == [["A"], ["B"]]


async def test_without_a_wait_a_submission_starts_at_once() -> None:
    engine = Recorder(max_wait_ms=0.0)
    pending = engine.batcher.enqueue(["a", "b"])
    assert engine.sent() == [[["a", "b"]]]
    engine.answer(0)
    assert await pending == ["A", "B"]


async def test_back_pressure_lets_submitters_in_one_by_one_in_order() -> None:
    engine = Recorder(max_wait_ms=0.0, max_queue=4, max_inflight=4)
    slots = [["a"] * 4, ["b"] * 3, ["c"] * 2, ["d"], ["e"]]
    tasks = [asyncio.create_task(engine.batcher.submit(items)) for items in slots]
    await settle()
    assert engine.sent() == [[["a"] * 4]]
    assert engine.batcher.queue.num_waiting == 3  # b waits; c needs two places, and d may not overtake it
    engine.answer(0)
    await settle()
    assert engine.sent()[1:] == [[["b"] * 3]]
    assert engine.batcher.queue.num_waiting == 4  # c, d and e came in; they wait for b's places in flight
    engine.answer(1)
    await settle()
    assert engine.sent()[2:] == [[["c"] * 2, ["d"], ["e"]]]
    engine.answer(2)
    assert [len(r) for r in await asyncio.gather(*tasks)] == [4, 3, 2, 1, 1]


async def test_cancelling_a_waiting_submission_withdraws_it_and_makes_room() -> None:
    engine = Recorder(max_queue=4)
    first = asyncio.create_task(engine.batcher.submit(["a"] * 3))
    second = asyncio.create_task(engine.batcher.submit(["b"] * 2))
    await settle()
    first.cancel()
    await settle()
    assert engine.batcher.queue.num_waiting == 2
    await engine.clock.advance(20)
    assert engine.sent() == [[["b"] * 2]]
    engine.answer(0)
    assert await second == ["B", "B"]


async def test_a_submission_that_can_never_fit_is_refused_with_the_fix() -> None:
    engine = Recorder(max_queue=4)
    with pytest.raises(InputError, match="raise max_queue"):
        await engine.batcher.submit(["a"] * 5)
    with pytest.raises(InputError, match="at least one"):
        await engine.batcher.submit([])
