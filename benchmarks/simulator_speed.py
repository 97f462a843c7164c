"""How fast simulators in processes are, beside Gymnasium's vector environments in the same run.

The same environments under random actions, one action per step, whole episodes with their resets; what is
counted are environment transitions, never resets. Gymnasium's vectors reset an environment in the step
that ends its episode; ours are told to begin another while those beside it go on (in a rollout: while their
actions are generated), and the place acts when it has seen how that begins. Rows of an environment:

    Gymnasium Sync        all environments in this process, one after the other
    Gymnasium Async       one process per environment, all stepped in one call
    ours, 1 per process   one simulator process per environment
    ours, batches         the same environments in few processes, each stepping a batch; with 2 batches
                          per process one is answered while the other is stepped

Simulators advance independently of each other, which vectors do not. `CPU` is the processor time that all
processes of a row took per transition; other work on the machine changes it less than it does the speed.

The second table is what a call costs beside the stepping itself: the time of `ProcessSimulator.step` less
that of `EnvBatch.step` on the same worlds (39 numbers, an action of 4), and a bare `multiprocessing` pipe
for comparison.

    python benchmarks/simulator_speed.py                    # tables, and results/simulator_speed.json
    python benchmarks/simulator_speed.py --seconds 1 --no-write --worlds cartpole
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, RobotEnvDescription, Task
from stepwell.envs import EnvBatch, make_env
from stepwell.envs.robots.base import ActionEffect, RobotEnv, RobotOptions
from stepwell.envs.turns import Turn
from stepwell.workers import ProcessSimulator

RESULT = Path(__file__).parent / "results" / "simulator_speed.json"
ROUNDS = 5
BURST = 50  # transitions per environment between two looks at the clock
NUM_CALLS = 1000
HERE = Path(__file__).stem
Play = Callable[[], Awaitable[int]]  # plays a while; the transitions that took


class GymOptions(RobotOptions):
    """Which environment."""

    id: str = "CartPole-v1"
    camera: tuple[str, ...] = ("none",)


class GymWorld(RobotEnv):
    """A Gymnasium environment of arrays as a robot environment; the sign chooses a discrete action."""

    name: ClassVar[str] = "gym"
    extra: ClassVar[str] = ""
    Options: ClassVar[type[Settings]] = GymOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._gym = gymnasium.make(self.options.id, disable_env_checker=True)
        self._is_discrete = isinstance(self._gym.action_space, gymnasium.spaces.Discrete)
        self._is_solved = False  # here: the episode has ended

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"seed": seed}, seed=seed)

    def layout(self) -> RobotEnvDescription:
        actions = 1 if self._is_discrete else self._gym.action_space.shape[0]
        shape = self._gym.observation_space.shape
        return RobotEnvDescription(self.name, {"state": ArraySpec(shape)}, actions, self.options.max_actions)

    def begin(self, task: Task, seed: int) -> None:
        self._seen, _ = self._gym.reset(seed=task.content["seed"])

    def act(self, action: Any) -> ActionEffect:
        given = int(action[0] > 0) if self._is_discrete else action
        self._seen, reward, terminated, truncated, _ = self._gym.step(given)
        return ActionEffect(terminated or truncated, float(reward))

    def arrays(self) -> dict[str, Any]:
        return {"state": np.asarray(self._seen, np.float32)}

    def facts(self) -> dict[str, JSON]:
        return {}

    def image(self, camera: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self._gym.close()


class IdleWorld(GymWorld):
    """An environment that does nothing: what is left is the call."""

    name: ClassVar[str] = "idle"

    def __init__(self, options: Settings | None = None) -> None:
        RobotEnv.__init__(self, options)
        self._seen = np.zeros(39, np.float32)

    def layout(self) -> RobotEnvDescription:
        return RobotEnvDescription(self.name, {"state": ArraySpec((39,))}, 4, self.options.max_actions)

    def begin(self, task: Task, seed: int) -> None:
        return

    def act(self, action: Any) -> ActionEffect:
        return ActionEffect(False)

    def close(self) -> None:
        return


def metaworld_gym() -> Any:
    import metaworld  # noqa: F401 (registers its environments)

    return gymnasium.make("Meta-World/MT1", env_name="reach-v3", disable_env_checker=True)


# environment: (title, Gymnasium's side, our env, its options)
WORLDS: dict[str, tuple[str, Callable[[], Any], str, dict[str, Any]]] = {
    "cartpole": (
        "CartPole-v1",
        partial(gymnasium.make, "CartPole-v1", disable_env_checker=True),
        f"{HERE}:GymWorld",
        {"id": "CartPole-v1", "max_actions": 1000},
    ),
    "halfcheetah": (
        "HalfCheetah-v5 (MuJoCo)",
        partial(gymnasium.make, "HalfCheetah-v5", disable_env_checker=True),
        f"{HERE}:GymWorld",
        {"id": "HalfCheetah-v5", "max_actions": 2000},
    ),
    "metaworld": ("Meta-World reach", metaworld_gym, "metaworld", {"task": "reach", "max_actions": 500}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="time given to each row")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, help="simulator processes")
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[8, 32], help="environments per process, all batches"
    )
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    result = asyncio.run(measure(args))
    show(result)
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for world in args.worlds:
        for size in args.batch_sizes:
            for row in await measure_world(world, args.processes, size, args.seconds):
                rows.append({"world": WORLDS[world][0], "batch_size": size, **row})
                print(json.dumps(rows[-1]), flush=True)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "gymnasium": gymnasium.__version__,
        "processes": args.processes,
        "rows": rows,
        "calls": await measure_calls(),
    }


async def measure_world(
    world: str, num_processes: int, batch_size: int, seconds: float
) -> list[dict[str, Any]]:
    """Rounds take turns, so that all rows share the noise; the median of them."""
    _, make, env, options = WORLDS[world]
    num_envs = num_processes * batch_size
    sides: dict[tuple[str, int, int], Any] = {  # Gymnasium's first: it forks this process
        ("Gymnasium Sync", 1, num_envs): Vector(gymnasium.vector.SyncVectorEnv, make, num_envs),
        ("Gymnasium Async", num_processes, num_processes): Vector(
            gymnasium.vector.AsyncVectorEnv, make, num_processes
        ),
        ("Gymnasium Async", num_envs, num_envs): Vector(gymnasium.vector.AsyncVectorEnv, make, num_envs),
    }
    for title, batches, size in (
        ("ours, 1 per process", 1, 1),
        ("ours, 1 batch each", 1, batch_size),
        ("ours, 2 batches each", 2, batch_size // 2),
    ):
        if size:
            key = (title, num_processes, num_processes * batches * size)
            sides[key] = Simulators(env, options, num_processes, batches, size)
    seen: dict[tuple[str, int, int], list[tuple[float, float]]] = {key: [] for key in sides}
    try:
        for side in sides.values():
            await side.play()
        for _ in range(ROUNDS):
            for key, side in sides.items():
                seen[key].append(await repeat(side.play, seconds / ROUNDS))
    finally:
        for side in sides.values():
            await side.close()
    return [
        {
            "side": title,
            "processes": processes,
            "envs": envs,
            "steps_per_s": round(statistics.median(speed for speed, _ in found)),
            "cpu_us": round(statistics.median(cpu for _, cpu in found), 1),
        }
        for (title, processes, envs), found in seen.items()
    ]


async def repeat(play: Play, seconds: float) -> tuple[float, float]:
    """Transitions per second, and processor time per transition in microseconds."""
    num_steps, spent_s, start = 0, cpu_s(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        num_steps += await play()
    speed = num_steps / (time.perf_counter() - start)
    return speed, 1e6 * (cpu_s() - spent_s) / num_steps


def cpu_s() -> float:
    """Processor time of this process and all it has started; those that wait take none."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


class Vector:
    """Gymnasium's side."""

    def __init__(self, kind: Any, make: Callable[[], Any], num_envs: int) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self.envs = kind([make] * num_envs, autoreset_mode=mode)
        self.envs.action_space.seed(0)
        self.actions = [self.envs.action_space.sample() for _ in range(BURST)]
        self.envs.reset(seed=0)

    async def play(self) -> int:
        for actions in self.actions:
            self.envs.step(actions)
        return BURST * self.envs.num_envs

    async def close(self) -> None:
        self.envs.close()


class Simulators:
    """Ours: every environment batch goes on as soon as it is answered."""

    def __init__(self, env: str, options: dict[str, Any], num: int, batches: int, size: int) -> None:
        self.sims = [ProcessSimulator(f"sim{n}", env, options, batches, size) for n in range(num)]
        self.places = list(range(size))
        world = make_env(env, options)
        self.tasks = [world.make_task(world.options, seed) for seed in range(64)]
        shape = (BURST, size, 1, world.description.action_dim)
        self.chunks = [list(step) for step in np.random.default_rng(0).uniform(-1, 1, shape).astype("f4")]
        world.close()
        self.has_begun = False

    async def play(self) -> int:
        if not self.has_begun:
            await asyncio.gather(*(self.begin(sim, b, self.places) for sim, b in self.batches()))
            self.has_begun = True
        return sum(await asyncio.gather(*(self.play_batch(sim, b) for sim, b in self.batches())))

    async def play_batch(self, sim: ProcessSimulator, batch: int) -> int:
        """A place whose episode is over sits out one step of the others, while its next one begins."""
        num_steps, over = 0, set[int]()
        for chunks in self.chunks:
            going = [place for place in self.places if place not in over]
            calls: list[Awaitable[Any]] = [self.step(sim, batch, going, chunks)]
            if over:
                calls.append(self.begin(sim, batch, sorted(over)))
            turns = (await asyncio.gather(*calls))[0]
            num_steps += len(going)
            over = {place for place, turn in zip(going, turns, strict=True) if turn.is_over}
        if over:
            await self.begin(sim, batch, sorted(over))
        return num_steps

    @staticmethod
    async def step(sim: ProcessSimulator, batch: int, places: list[int], chunks: list[Any]) -> list[Turn]:
        return await sim.step(batch, places, [chunks[place] for place in places]) if places else []

    async def begin(self, sim: ProcessSimulator, batch: int, places: list[int]) -> None:
        tasks = [self.tasks[np.random.randint(len(self.tasks))] for _ in places]
        turns = await sim.reset(batch, places, tasks, [task.seed for task in tasks])
        problems = [turn.error for turn in turns if turn.error is not None]
        if problems:
            raise problems[0]

    def batches(self) -> list[tuple[ProcessSimulator, int]]:
        return [(sim, batch) for sim in self.sims for batch in range(sim.num_batches)]

    async def close(self) -> None:
        for sim in self.sims:
            await sim.close()


async def measure_calls() -> list[dict[str, Any]]:
    """What a call costs beyond the stepping, in microseconds: the medians."""
    found = [{"what": "multiprocessing pipe, there and back", "p50_us": round(pipe_us(), 1)}]
    for size in (1, 8, 32):
        env, options = f"{HERE}:IdleWorld", {"max_actions": 10**9}
        sim, here = ProcessSimulator("idle", env, options, 1, size), EnvBatch(env, options, size)
        places, tasks = list(range(size)), [Task("idle", {"seed": place}) for place in range(size)]
        chunks = [np.zeros((1, 4), np.float32)] * size
        await sim.reset(0, places, tasks, places)
        here.reset(tasks)
        there: list[float] = []
        near: list[float] = []
        for _ in range(NUM_CALLS // BURST):
            for _ in range(BURST):
                started = time.perf_counter()
                await sim.step(0, places, chunks)
                there.append(time.perf_counter() - started)
            for _ in range(BURST):
                started = time.perf_counter()
                here.step(places, chunks)
                near.append(time.perf_counter() - started)
        overhead = 1e6 * (statistics.median(there) - statistics.median(near))
        found.append({"what": f"step of {size} worlds, less the stepping", "p50_us": round(overhead, 1)})
        await sim.close()
    return found


def pipe_us() -> float:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=echo, args=(theirs,), daemon=True)
    process.start()
    waits = []
    for _ in range(NUM_CALLS):
        started = time.perf_counter()
        ours.send(b"x" * 200)
        ours.recv()
        waits.append(time.perf_counter() - started)
    ours.send(None)
    process.join()
    return 1e6 * statistics.median(waits)


def echo(end: Any) -> None:
    while (message := end.recv()) is not None:
        end.send(message)


def show(result: dict[str, Any]) -> None:
    console = Console()
    names = ("world", "side", "processes", "environments", "steps/s", "CPU µs/step")
    table = Table(*names, title=result["machine"])
    for row in result["rows"]:
        numbers = str(row["processes"]), str(row["envs"]), f"{row['steps_per_s']:,}", f"{row['cpu_us']:.0f}"
        table.add_row(row["world"], row["side"], *numbers)
    console.print(table)
    calls = Table("call", "µs (median)")
    for row in result["calls"]:
        calls.add_row(row["what"], str(row["p50_us"]))
    console.print(calls)


if __name__ == "__main__":
    main()
