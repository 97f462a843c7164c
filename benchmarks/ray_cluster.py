"""The asynchronous rollout on Ray clusters of two and four nodes, beside processes of this machine.

Real driver, request queue, simulators and generators. The environment and the policy only wait (50 ms for an
action, 60 ms for a batch), so that the cores of one machine are not what is measured; nodes are those of
`ray.cluster_utils.Cluster`. Backends take turns, and each round is compared within itself.

    throughput   turns per second by backend
    loss         four nodes; one is killed and one added in the middle: every episode counts once
    calls        time of one call that does nothing, and of one with 4 MB, by backend
    weights      200 MB to two generators

    python benchmarks/ray_cluster.py                # the tables, and results/ray_cluster.json
    python benchmarks/ray_cluster.py --quick        # fewer episodes and one round, no file
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from waiting_robot import ENGINE, ENV, WaitingRobot

from stepwell.config.workers import WorkersConfig
from stepwell.core import SamplingParams, Status
from stepwell.rollout.jobs import Job
from stepwell.rollout.robot_player import RobotPlayer
from stepwell.workers import ProcessGenerator, ProcessSimulator
from stepwell.workers.driver import Driver, PlannedEpisode, PlayedEpisode
from stepwell.workers.placement import resolve_placement
from stepwell.workers.ray_cluster import RayCluster, read_cluster
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.weight_bytes import PackedWeights

RESULT = Path(__file__).parent / "results" / "ray_cluster.json"
NUM_SIMULATORS, NUM_GENERATORS, ENV_BATCHES, BATCH_SIZE = 4, 2, 2, 2
NUM_TURNS, CALL_S = 10, 0.06
NODE = {"num_cpus": 4, "object_store_memory": 500 * 2**20}
SYSTEM = {  # a node that is gone is noticed within two seconds instead of fifteen
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
}
CONSOLE = Console(width=110)


class CountingFeed:
    """Jobs 0..n-1; one that is lost is played again. `good` counts the results that may be learnt from."""

    def __init__(self, count: int) -> None:
        self._left, self.good, self.num_lost = list(range(count)), Counter[int](), 0
        self.count, self.is_whole = count, asyncio.Event()
        self.driver: Driver | None = None

    def take_next(self) -> PlannedEpisode | None:
        if not self._left:
            return None
        seed = self._left.pop(0)
        return PlannedEpisode(Job(WaitingRobot.make_task(None, seed), f"g{seed}", seed), SamplingParams())

    def report(self, played: PlayedEpisode) -> None:
        if played.trajectory.status is Status.INFRA_ERROR:
            self.num_lost += 1
            self._left.append(played.job.seed)
            assert self.driver is not None
            self.driver.wake()
            return
        self.good[played.job.seed] += 1
        if sum(self.good.values()) == self.count:
            self.is_whole.set()


class Workers:
    """Simulators and generators of one backend, started once for all that is measured with it."""

    def __init__(self, backend: str, num_simulators: int = NUM_SIMULATORS) -> None:
        launchers: list[Any] = [None] * (num_simulators + NUM_GENERATORS)
        self._cluster: RayCluster | None = None
        if backend == "ray":
            config = WorkersConfig(
                backend="ray",
                simulators={"num_workers": num_simulators},  # type: ignore[arg-type]
                generators={"num_workers": NUM_GENERATORS},  # type: ignore[arg-type]
            )
            self._cluster = RayCluster(config, "benchmark")
            plan = self._cluster.open_group(resolve_placement(config, "cpu", ["cpu"]))
            launchers = [self._cluster.make_launcher(b, {}) for b in (*plan.simulators, *plan.generators)]
        options = {"max_actions": NUM_TURNS}
        shape = (ENV_BATCHES, BATCH_SIZE)
        self.simulators = [
            ProcessSimulator(f"simulator {i}", ENV, options, *shape, launcher=launchers[i])
            for i in range(num_simulators)
        ]
        self.generators = [
            ProcessGenerator(
                f"generator {i}",
                ENGINE,
                {"call_s": CALL_S},
                num_threads=1,
                launcher=launchers[num_simulators + i],
            )
            for i in range(NUM_GENERATORS)
        ]

    async def start(self) -> None:
        await asyncio.gather(*(worker.start() for worker in (*self.simulators, *self.generators)))

    async def play(self, num_episodes: int) -> dict[str, Any]:
        """Play so many episodes and count."""
        feed = CountingFeed(num_episodes)
        queue = RequestQueue(self.generators, max_batch=16, max_wait_ms=5)
        feed.driver = driver = Driver(self.simulators, queue, RobotPlayer(ENV), feed)
        began, cpu = time.perf_counter(), time.process_time()
        running = asyncio.ensure_future(driver.run())
        whole = asyncio.ensure_future(feed.is_whole.wait())
        await asyncio.wait([running, whole], return_when=asyncio.FIRST_COMPLETED)
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        driver.stop()
        await running
        queue.close()
        counts = driver.counts
        assert counts.num_started == counts.num_finished + counts.num_failed + counts.num_abandoned
        assert feed.good == Counter(range(num_episodes)), "an episode was counted twice or not at all"
        return {
            "turns_per_s": num_episodes * NUM_TURNS / wall_s,
            "wall_s": wall_s,
            "controller_ms_per_turn": 1000 * cpu_s / (num_episodes * NUM_TURNS),
            "episodes": sum(feed.good.values()),
            "lost_and_played_again": feed.num_lost,
            "restarts": sum(w.read_health().num_restarts for w in (*self.simulators, *self.generators)),
        }

    async def time_calls(self, count: int) -> dict[str, float]:
        """Milliseconds of a step that does not wait, by the size of its observation."""
        found = {}
        await self.simulators[0].close()  # its place is needed
        for name, floats in (("small", 32), ("4 MB", 2**20)):
            launcher = self.simulators[0]._channel._launcher
            options = {"step_s": 0.0, "num_floats": floats, "max_actions": 10**5}
            sim = ProcessSimulator("quick", ENV, options, 1, 1, launcher=launcher if self._cluster else None)
            await sim.reset(0, [0], [WaitingRobot.make_task(None, 1)], [1])
            times = []
            for _ in range(count):
                began = time.perf_counter()
                (turn,) = await sim.step(0, [0], [np.zeros((1, 2), np.float32)])
                times.append(1000 * (time.perf_counter() - began))
                assert turn.error is None
            found[name] = statistics.median(times)
            await sim.close()
        return found

    async def time_weights(self, num_bytes: int) -> float:
        """Seconds until both generators have new weights."""
        weights = {"w": np.random.default_rng(0).random(num_bytes // 4, np.float32)}
        began = time.perf_counter()
        shared = PackedWeights(weights)
        await asyncio.gather(*(generator.load_weights(1, shared) for generator in self.generators))
        return time.perf_counter() - began

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in (*self.simulators, *self.generators)))
        if self._cluster is not None:
            self._cluster.close()


def open_cluster(num_nodes: int) -> Cluster:
    head = {**NODE, "include_dashboard": False, "_system_config": SYSTEM}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(num_nodes - 1):
        cluster.add_node(**NODE)
    ray.init(address=cluster.address, namespace="stepwell", log_to_driver=False, logging_level="error")
    return cluster


def close_cluster(cluster: Cluster) -> None:
    ray.shutdown()
    cluster.shutdown()


async def compare(num_episodes: int, rounds: int, with_costs: bool) -> dict[str, Any]:
    """Both backends in turn, on the cluster that is open."""
    backends = {"local": Workers("local"), "ray": Workers("ray")}
    for workers in backends.values():
        await workers.start()
        await workers.play(8)
    played: dict[str, list[dict[str, Any]]] = {name: [] for name in backends}
    for number in range(rounds):
        names = list(backends) if number % 2 == 0 else list(reversed(backends))
        for name in names:
            played[name].append(await backends[name].play(num_episodes))
    found: dict[str, Any] = {
        name: {
            "turns_per_s": [round(row["turns_per_s"], 1) for row in rows],
            "median": round(statistics.median(row["turns_per_s"] for row in rows), 1),
            "controller_ms_per_turn": round(statistics.median(r["controller_ms_per_turn"] for r in rows), 3),
        }
        for name, rows in played.items()
    }
    pairs = zip(played["ray"], played["local"], strict=True)
    found["ray_of_local"] = round(statistics.median(a["turns_per_s"] / b["turns_per_s"] for a, b in pairs), 3)
    if with_costs:
        for name, workers in backends.items():
            calls = await workers.time_calls(200)
            found[name]["call_ms"] = {kind: round(value, 2) for kind, value in calls.items()}
            found[name]["weights_200_mb_s"] = round(await workers.time_weights(200 * 10**6), 2)
    for workers in backends.values():
        await workers.close()
    return found


def lose_node(cluster: Cluster, num_episodes: int) -> dict[str, Any]:
    """Play on four nodes; after a third of the time one is killed, and one comes later."""
    result: dict[str, Any] = {}

    async def work() -> None:
        workers = Workers("ray")
        await workers.start()
        ready.set()
        result.update(await workers.play(num_episodes))
        await workers.close()

    ready, thread = threading.Event(), threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    ready.wait()
    expected_s = num_episodes * NUM_TURNS / 75
    time.sleep(expected_s / 3)
    victims = Counter(worker["node"] for worker in read_cluster().workers)
    node = next(n for n in cluster.worker_nodes if victims[n.node_id])
    cluster.remove_node(node, allow_graceful=False)
    killed = victims[node.node_id]
    time.sleep(2)
    cluster.add_node(**NODE)
    thread.join()
    keys = ("episodes", "lost_and_played_again", "restarts")
    return {
        **{key: result[key] for key in keys},
        "workers_on_the_killed_node": killed,
        "turns_per_s": round(result["turns_per_s"], 1),
        "every_episode_once": True,  # asserted in `play`
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    episodes, rounds = (32, 1) if args.quick else (args.episodes, args.rounds)
    result: dict[str, Any] = {
        "machine": f"{os.uname().machine}, {len(os.sched_getaffinity(0))} cores",
        "load_at_the_start": round(os.getloadavg()[0], 1),
        "ray": ray.__version__,
        "workers": f"{NUM_SIMULATORS} simulators x {ENV_BATCHES} x {BATCH_SIZE}, {NUM_GENERATORS} generators",
        "episodes": episodes,
        "nodes": {},
    }
    for num_nodes in (2, 4):
        cluster = open_cluster(num_nodes)
        result["nodes"][str(num_nodes)] = asyncio.run(compare(episodes, rounds, with_costs=num_nodes == 2))
        if num_nodes == 4:
            result["loss"] = lose_node(cluster, 2 * episodes)
        close_cluster(cluster)
    show(result)
    ratios = [row["ray_of_local"] for row in result["nodes"].values()]
    result["required"] = {"ray_of_local": 0.9, "is_met": min(ratios) >= 0.9}
    result["load_at_the_end"] = round(os.getloadavg()[0], 1)
    if not args.quick:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"turns per second; {result['workers']}; {result['machine']}")
    for name in ("nodes", "local", "Ray", "of local", "controller ms per turn: local", "Ray"):
        table.add_column(name, justify="right")
    for nodes, row in result["nodes"].items():
        cells: Sequence[Any] = (nodes, row["local"]["median"], row["ray"]["median"], row["ray_of_local"])
        more = (row["local"]["controller_ms_per_turn"], row["ray"]["controller_ms_per_turn"])
        table.add_row(*map(str, (*cells, *more)))
    CONSOLE.print(table)
    for name in ("local", "ray"):
        row = result["nodes"]["2"][name]
        CONSOLE.print(f"{name}: call {row['call_ms']} ms, 200 MB of weights {row['weights_200_mb_s']} s")
    CONSOLE.print(f"one of four nodes killed, one added: {result['loss']}")


if __name__ == "__main__":
    main()
