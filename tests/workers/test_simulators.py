"""Simulators as processes: the same turns as in this process, whatever happens to the workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.test_codecs import values_of
from tests.workers.odd_envs import ODD, POINT, Odd, Point
from tests.workers.traces import is_running, nothing_left, shared_memory

from stepwell.core import ConfigError, EnvError, InputError, Split, Task, WorkerError
from stepwell.envs import EnvBatch, draw_tasks
from stepwell.envs.turns import Turn
from stepwell.workers import ProcessSimulator

GO = ("go",)


@asynccontextmanager
async def simulator(env_name: str = ODD, options: Any = None, **more: Any) -> AsyncIterator[ProcessSimulator]:
    with nothing_left():
        made = ProcessSimulator("sim", env_name, options, **{"num_batches": 2, "batch_size": 3} | more)
        try:
            yield made
        finally:
            await made.close()
            assert made.read_health().pid is None


def odd_tasks(count: int) -> list[Task]:
    return [Odd.make_task(None, seed) for seed in range(count)]


async def begin(sim: ProcessSimulator, batch: int = 0, count: int = 3) -> list[Turn]:
    return await sim.reset(batch, range(count), odd_tasks(count), range(count))


def test_a_worker_imports_nothing_of_agents_and_rewards() -> None:
    code = "import sys, stepwell.workers.worker_main; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "stepwell.envs.batch" in found
    assert not {"stepwell.agents", "stepwell.rewards", "stepwell.rendering", "torch"} & set(found)


async def has_ended(pid: int, within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while is_running(pid) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return not is_running(pid)


def texts(turns: list[Turn]) -> list[str]:
    return [turn.observation.text for turn in turns]  # type: ignore[union-attr]


async def test_a_language_env_in_a_process_gives_what_it_gives_here() -> None:
    tasks = draw_tasks("frozenlake", {}, Split.TRAIN, 6, seed=0)
    here = [EnvBatch("frozenlake", {}, 3) for _ in range(2)]
    plays = [(("Up", "Left"), (), ("Down",)), (("Right",), ("Jump",), ("Down", "Down"))]
    async with simulator("frozenlake", with_state=True) as sim:
        for number in range(2):
            mine = tasks[3 * number : 3 * number + 3]
            found = await sim.reset(number, [0, 1, 2], mine, [1, 2, 3])
            expected = here[number].reset(mine, [0, 1, 2], [1, 2, 3], with_state=True)
            assert list(map(values_of, found)) == list(map(values_of, expected))
        for actions in plays:
            answers = await asyncio.gather(*(sim.step(number, [2, 0, 1], actions) for number in range(2)))
            for number, found in enumerate(answers):
                expected = here[number].step([2, 0, 1], actions, with_state=True)
                assert list(map(values_of, found)) == list(map(values_of, expected))
        assert isinstance(found[1].error, EnvError) and "Jump" in str(found[1].error)


@pytest.mark.parametrize("options", [{}, {"observation": "both", "image_size": 80}])
async def test_a_robots_env_in_a_process_gives_what_it_gives_here(options: dict[str, Any]) -> None:
    here, rng = EnvBatch(POINT, options, 3), np.random.default_rng(0)
    tasks = [Point.make_task(here.envs[0].options, seed) for seed in range(3)]
    async with simulator(POINT, options) as sim:
        found, expected = await sim.reset(1, [0, 1, 2], tasks, [0, 0, 0]), here.reset(tasks, seeds=[0, 0, 0])
        for length in (1, 4, 4):
            assert list(map(values_of, found)) == list(map(values_of, expected))
            chunks = [rng.uniform(-1, 1, (length, 2)).astype(np.float32) for _ in range(3)]
            found, expected = await sim.step(1, [0, 1, 2], chunks), here.step([0, 1, 2], chunks)
        assert {name: array.shape for name, array in found[0].observation.arrays.items()} == {  # type: ignore[union-attr]
            name: spec.shape for name, spec in here.envs[0].description.arrays.items()
        }


async def test_mistakes_of_the_caller_are_said_before_anything_is_sent() -> None:
    sim = ProcessSimulator("sim", ODD, {}, 2, 3)
    task = odd_tasks(1)
    for call, words in (
        (sim.step(2, [0], [GO]), "numbered 0..1, got 2"),
        (sim.step(0, [3], [GO]), "places are numbered 0..2"),
        (sim.step(0, [0, 0], [GO, GO]), "one turn at a time"),
        (sim.step(0, [0, 1], [GO]), "1 tasks or actions for 2 places"),
        (sim.reset(0, [0, 1], task, [0]), "1 tasks or actions for 2 places"),
    ):
        with pytest.raises(InputError, match=words):
            await call
    assert sim.read_health().pid is None
    with pytest.raises(InputError, match="batch_size"):
        ProcessSimulator("sim", ODD, {}, 1, 0)


async def test_what_cannot_be_built_is_said_and_not_tried_again() -> None:
    async with simulator(options={"colour": "red"}) as sim:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"env.options.colour is not an option"):
                await sim.start()
        assert sim.read_health().num_restarts == 0


@pytest.mark.parametrize(
    "options, words", [({"fails_to_build": True}, "no licence"), ({"dies_when_built": True}, "exit code 9")]
)
async def test_an_env_that_cannot_start_ends_after_three_attempts(
    options: dict[str, bool], words: str
) -> None:
    async with simulator(options=options) as sim:
        with pytest.raises(WorkerError, match=f"(?s){words}.*failed to start 3 times"):
            await begin(sim)
        assert sim.read_health().num_restarts == 2


async def test_an_env_that_raises_costs_its_own_episode_only() -> None:
    async with simulator() as sim:
        await begin(sim)
        pid = sim.read_health().pid
        turns = await sim.step(0, [0, 1, 2], [GO, ("raise",), ("odd info",)])
        assert turns[0].error is None and texts(turns)[0] == "count 1"
        assert "the ice broke" in str(turns[1].error) and "is not JSON" in str(turns[2].error)
        (left,) = await sim.step(0, [1], [("exit",)])
        assert "SystemExit" in str(left.error)
        assert texts(await sim.step(0, [0], [GO])) == ["count 2"]
        assert sim.read_health().pid == pid and sim.read_health().num_restarts == 0


@pytest.mark.parametrize(
    "action, words",
    [
        ("vanish", "(?s)ended with exit code 7.*the simulator says goodbye"),
        ("linger", "ended with exit code 7"),
        ("crash", "(?s)was killed by SIGABRT.*Fatal Python error: Aborted"),
    ],
)
async def test_an_env_that_ends_its_process_costs_the_calls_under_way(action: str, words: str) -> None:
    async with simulator() as sim:
        await begin(sim)
        await begin(sim, batch=1)
        with pytest.raises(WorkerError, match=words):
            await sim.step(0, [0], [(action,)])
        lost = await sim.step(1, [0, 1], [GO, GO])  # of another batch: its environments are gone as well
        assert all(isinstance(turn.error, WorkerError) and "restarted" in str(turn.error) for turn in lost)
        assert texts(await begin(sim)) == ["count 0", "count 1", "count 2"]
        assert texts(await sim.step(0, [2], [GO])) == ["count 3"]
        assert sim.read_health().num_restarts == 1


async def test_killed_during_a_step_every_call_raises_and_the_next_reset_works() -> None:
    async with simulator() as sim:
        await begin(sim)
        await begin(sim, batch=1)
        calls = [asyncio.create_task(sim.step(batch, [0], [("sleep",) * 3])) for batch in (0, 1)]
        await asyncio.sleep(0.05)
        pid = sim.read_health().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(error) for error in found] == [f"worker sim (pid {pid}) was killed by SIGKILL"] * 2
        assert all(isinstance(error, WorkerError) for error in found)
        assert texts(await begin(sim)) == ["count 0", "count 1", "count 2"]


async def hang(sim: ProcessSimulator) -> None:
    await sim.step(0, [0], [("hang",)])


async def stop(sim: ProcessSimulator) -> None:
    os.kill(sim.read_health().pid or 0, signal.SIGSTOP)
    await sim.step(0, [0], [GO])


@pytest.mark.parametrize("fault, words", [(hang, "made no progress"), (stop, "gave no sign of life")])
async def test_a_hang_is_found_killed_and_restarted(fault: Callable[..., Any], words: str) -> None:
    async with simulator(hang_s=1.5) as sim:
        await begin(sim)
        pid = sim.read_health().pid
        with pytest.raises(WorkerError, match=words):
            await fault(sim)
        assert not is_running(pid or 0)
        assert texts(await begin(sim)) == ["count 0", "count 1", "count 2"]


async def test_a_slow_batch_whose_envs_go_on_is_no_hang() -> None:
    async with simulator(hang_s=1.5, batch_size=8) as sim:
        await begin(sim, count=8)
        since = time.monotonic()
        turns = await sim.step(0, range(8), [("sleep",)] * 8)
        assert time.monotonic() - since > 1.5 and sim.read_health().num_restarts == 0
        assert [turn.error for turn in turns] == [None] * 8


async def test_a_call_that_takes_too_long_costs_the_worker_its_life() -> None:
    async with simulator(timeout_s=1.5) as sim:
        await sim.start()
        await begin(sim)
        with pytest.raises(WorkerError, match=r"took longer than 1.5 s for step"):
            await sim.step(0, [0], [("hang",)])
        await sim.start()
        assert sim.read_health().num_restarts == 1


async def test_a_cancelled_call_leaves_the_worker_in_order() -> None:
    async with simulator() as sim:
        await begin(sim)
        call = asyncio.create_task(sim.step(0, [0], [("sleep",)]))
        await asyncio.sleep(0.02)
        call.cancel()
        assert texts(await sim.step(0, [0, 1], [GO, GO])) == ["count 2", "count 2"]
        assert sim.read_health().num_restarts == 0


async def test_restarts_end_after_max_restarts() -> None:
    async with simulator(max_restarts=1) as sim:
        for _ in range(2):
            await begin(sim)
            with pytest.raises(WorkerError, match="exit code 7"):
                await sim.step(0, [0], [("vanish",)])
        with pytest.raises(WorkerError, match=r"(?s)exit code 7.*Giving up after 1 restarts"):
            await begin(sim)


async def test_health_says_memory_and_silence() -> None:
    async with simulator(heartbeat_s=0.05) as sim:
        assert not sim.read_health().is_alive
        await sim.start()
        health = sim.read_health()
        resident = int(Path(f"/proc/{health.pid}/statm").read_text().split()[1]) * 4096 / 2**20
        assert health.is_alive and health.name == "sim"
        assert 0.5 * resident < health.memory_mb < 1.5 * resident
        for _ in range(3):  # three signs of life, each of which begins the silence anew
            before = sim.read_health().silent_s
            while (now := sim.read_health().silent_s) >= before:
                before = now
                await asyncio.sleep(0.005)
    with pytest.raises(WorkerError, match="is closed"):
        await sim.start()


async def test_closing_ends_calls_under_way_and_what_the_env_started() -> None:
    async with simulator() as sim:
        await begin(sim)
        child = (await sim.step(0, [0], [("fork",)]))[0].info["child"]
        assert is_running(child)  # type: ignore[arg-type]
        call = asyncio.create_task(sim.step(0, [1], [("sleep", "sleep")]))
        await asyncio.sleep(0.02)
        await asyncio.gather(sim.close(), sim.close())
        with pytest.raises(WorkerError):
            await call
        assert await has_ended(child)  # type: ignore[arg-type]


async def test_closing_while_it_starts_leaves_nothing() -> None:
    async with simulator() as sim:
        start = asyncio.create_task(sim.start())
        await asyncio.sleep(0.01)
        await sim.close()
        with pytest.raises(WorkerError, match="is closed"):
            await start


PARENT = """
import asyncio
from tests.workers.odd_envs import ODD, Odd
from stepwell.workers import ProcessSimulator

async def main():
    sims = [ProcessSimulator(f"sim{n}", ODD, {}, 1, 1) for n in range(2)]
    await asyncio.gather(*(sim.start() for sim in sims))
    await sims[0].reset(0, [0], [Odd.make_task(None, 0)], [0])
    print(*(sim.read_health().pid for sim in sims), flush=True)
    await sims[0].step(0, [0], [("hang",)])

asyncio.run(main())
"""


def test_files_that_other_programs_make_in_shared_memory_are_not_counted_as_left() -> None:
    with nothing_left(within_s=0.0):
        descriptor, name = tempfile.mkstemp(prefix="sem.other-", dir="/dev/shm")
        os.close(descriptor)
    os.unlink(name)


def test_when_the_parent_is_killed_its_workers_and_their_memory_go_with_it() -> None:
    before = shared_memory()
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(is_running, pids))
    time.sleep(0.05)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 60
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_running, pids))
    while set(shared_memory()) - set(before) and time.monotonic() < until:
        time.sleep(0.05)
    assert set(shared_memory()) <= set(before)


async def test_a_worker_that_is_killed_again_and_again_while_it_starts_is_started_again() -> None:
    simulator = ProcessSimulator("early", "frozenlake", {"size": 3}, batch_size=1)
    starting = asyncio.create_task(simulator.start())
    killed: set[int] = set()
    while len(killed) < 4:  # one more than failed starts are borne with
        await asyncio.sleep(0.01)
        pid = simulator.read_health().pid
        if pid is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    try:
        await starting
        health = simulator.read_health()
        assert health.is_alive and health.num_restarts == 4 and health.pid not in killed
    finally:
        await simulator.close()
