"""Devices that are shared, exactly, in virtual time."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from stepwell.workers.shared_devices import SharedDevices
from stepwell.workers.virtual_time import run_virtually

Job = tuple[float, float, str, dict[str, float]]  # start, seconds, kind, loads


def finish_times(jobs: list[Job], capacity: float = 1.0, switch_s: float = 0.0) -> list[float]:
    async def work() -> list[float]:
        devices, loop = SharedDevices(), asyncio.get_running_loop()
        devices.add_device("gpu", capacity, switch_s)
        devices.add_device("cores", 2.0)

        async def one(start: float, seconds: float, kind: str, loads: dict[str, float]) -> float:
            await asyncio.sleep(start)
            await devices.work(seconds, kind, loads)
            return loop.time()

        return list(await asyncio.gather(*(one(*job) for job in jobs)))

    return run_virtually(work)


def test_alone_work_takes_the_time_that_was_asked_for() -> None:
    assert finish_times([(0, 3, "a", {"gpu": 1.0})]) == pytest.approx([3.0])
    assert finish_times([(0, 3, "a", {})]) == pytest.approx([3.0])


def test_two_that_fit_together_do_not_slow_each_other_down() -> None:
    jobs: list[Job] = [(0, 3, "a", {"gpu": 0.6}), (1, 3, "b", {"gpu": 0.4})]
    assert finish_times(jobs) == pytest.approx([3.0, 4.0])


def test_two_that_need_all_of_a_device_take_turns_and_the_rest_runs_at_full_speed() -> None:
    # from 1 to 5 both run at half speed; the first has had 1 + 2 of its 3 then, the other 2 of its 4
    jobs: list[Job] = [(0, 3, "a", {"gpu": 1.0}), (1, 4, "b", {"gpu": 1.0})]
    assert finish_times(jobs) == pytest.approx([5.0, 7.0])


def test_work_runs_at_the_speed_of_its_slowest_resource() -> None:
    jobs: list[Job] = [(0, 2, "a", {"gpu": 0.5, "cores": 1.0})] + [
        (0, 2, "b", {"cores": 1.0}) for _ in range(3)
    ]
    assert finish_times(jobs) == pytest.approx([4.0] * 4)  # four on two cores


def test_work_that_begins_later_has_the_speed_of_that_moment() -> None:
    # from 0 to 4 the cores are asked for twice over, and the first on the device ends meanwhile
    jobs: list[Job] = [(0, 2, "a", {"cores": 1.0}) for _ in range(3)]
    jobs += [(0, 1, "b", {"gpu": 0.5, "cores": 1.0}), (6, 1, "b", {"gpu": 0.5, "cores": 1.0})]
    assert finish_times(jobs) == pytest.approx([3.5, 3.5, 3.5, 2.0, 7.0])


def test_a_device_that_turns_to_another_kind_of_work_loses_time() -> None:
    jobs: list[Job] = [(0, 1, "a", {"gpu": 1.0}), (2, 1, "a", {"gpu": 1.0}), (4, 1, "b", {"gpu": 1.0})]
    assert finish_times(jobs, switch_s=0.25) == pytest.approx([1.0, 3.0, 5.25])


def test_work_of_others_takes_its_share_all_the_time() -> None:
    async def work() -> float:
        devices = SharedDevices()
        devices.add_device("cores", 2.0, background=3.0)
        await devices.work(2.0, "a", {"cores": 1.0})
        return asyncio.get_running_loop().time()

    assert run_virtually(work) == pytest.approx(4.0)  # one of four that want two cores


def test_an_interrupt_ends_every_task_while_there_is_still_a_clock() -> None:
    ended: list[float] = []

    async def wait_long() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def work() -> None:
        waiting = asyncio.create_task(wait_long())
        await asyncio.sleep(1)
        assert not waiting.done()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_virtually(work)
    assert ended == [1.0]


class Stopped(BaseException):
    """What a handler of a signal raises."""


def test_a_signal_waits_until_no_task_runs_and_then_ends_all_of_them() -> None:
    told: list[str] = []

    def handle(number: int, frame: object) -> None:
        raise Stopped

    async def wait_long() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            told.append("cancelled")

    async def work() -> None:
        waiting = asyncio.create_task(wait_long())
        await asyncio.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        told.append("went on")
        await waiting

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(Stopped):
            run_virtually(work)
        assert told == ["went on", "cancelled"]
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)
