"""What the request queue and the driver cost per request, in microseconds of this process.

Generators and simulators answer at once, so all that is measured is our own code: `queue` posts bundles to a
`RequestQueue` and awaits their answers; `batcher` is the bare `engines.batcher` rule under the same load;
`driver` plays whole episodes (requests, queue, steps, records, delivery).

    python benchmarks/queue_overhead.py             # the table, and results/queue_overhead.json
    python benchmarks/queue_overhead.py --quick     # few requests, no file
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.core import SamplingParams, Task
from stepwell.engines.batcher import BatchQueue, RequestBundle
from stepwell.rollout import Job
from stepwell.workers.driver import Driver, PlannedEpisode, PlayedEpisode
from stepwell.workers.modelled import ModelledGenerator, ModelledHardware, ModelledPlayer, ModelledSimulator
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import ActionRequest, split_evenly

RESULT = Path(__file__).parent / "results" / "queue_overhead.json"
FREE = ModelledHardware(simulator=0.0, generator=0.0, sigma=0.0, num_envs=64, num_simulators=4, env_batches=2)


class AtOnce(ModelledGenerator):
    """Answers without waiting, not even for the event loop."""

    async def generate(self, requests: Any) -> Any:
        return [None] * len(requests)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    count = 2_000 if args.quick else args.requests
    rows = []
    for slot in (1, 8, 32):
        rows.append(row("batcher", slot, lambda slot=slot: batcher(count, slot)))
        rows.append(row("queue", slot, lambda slot=slot: asyncio.run(queue(count, slot))))
        rows.append(
            row("queue, even shards", slot, lambda slot=slot: asyncio.run(queue(count, slot, split_evenly)))
        )
    rows.append(row("driver, whole turns", FREE.batch_size, lambda: asyncio.run(driver(count))))
    show(rows)
    if not args.quick and not args.no_write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        RESULT.write_text(json.dumps({"machine": machine, "requests": count, "rows": rows}, indent=2) + "\n")


def row(what: str, slot: int, measured: Callable[[], float]) -> dict[str, Any]:
    seen = [measured() for _ in range(5)]
    return {"what": what, "slot": slot, "us_per_request": round(statistics.median(seen), 2)}


def make_requests(count: int) -> list[ActionRequest]:
    request = ModelledPlayer().make_request(None, SamplingParams())  # type: ignore[arg-type]
    return [ActionRequest(request, Job(Task("bench", {}), "g", 0), 0, 0)] * count


def batcher(count: int, slot: int) -> float:
    waiting: BatchQueue[ActionRequest] = BatchQueue(64, 1.0, 1 << 30)
    items = make_requests(slot)
    started = time.perf_counter()
    for i in range(count // slot):
        waiting.push(RequestBundle(items, i * 1e-6))
        while waiting.pop_ready(i * 1e-6):
            pass
    return 1e6 * (time.perf_counter() - started) / (count // slot * slot)


async def queue(count: int, slot: int, shard: Any = None) -> float:
    generators = [AtOnce(FREE, i) for i in range(2)]
    more = {} if shard is None else {"shard": shard}
    one = RequestQueue(generators, max_batch=64, max_wait_ms=0.0, **more)
    items, num_at_once = make_requests(slot), max(64 // slot, 1)
    num_rounds = max(count // (slot * num_at_once), 1)
    started = time.perf_counter()
    for _ in range(num_rounds):
        posted = [p for _ in range(num_at_once) for p in one.post_requests(items)]
        await asyncio.gather(*(p.answer for p in posted))
    return 1e6 * (time.perf_counter() - started) / (num_rounds * num_at_once * slot)


class _Feed:
    """Episodes of ten turns until the count is reached."""

    def __init__(self, count: int) -> None:
        self.left, self.num_open, self.whole = count // 10, 0, asyncio.Event()

    def take_next(self) -> PlannedEpisode | None:
        if self.left == 0:
            return None
        self.left, self.num_open = self.left - 1, self.num_open + 1
        return PlannedEpisode(Job(Task("bench", {"turns": 10}), "g", self.left), SamplingParams())

    def report(self, played: PlayedEpisode) -> None:
        self.num_open -= 1
        if self.left == 0 and self.num_open == 0:
            self.whole.set()


async def driver(count: int) -> float:
    feed = _Feed(count)
    requests = RequestQueue([ModelledGenerator(FREE, 0)], max_batch=64, max_wait_ms=0.0)
    simulators = [ModelledSimulator(FREE, i) for i in range(FREE.num_simulators)]
    one = Driver(simulators, requests, ModelledPlayer(), feed)
    started = time.perf_counter()
    running = asyncio.ensure_future(one.run())
    await feed.whole.wait()
    took = time.perf_counter() - started
    one.stop()
    await running
    return 1e6 * took / one.counts.num_turns


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="microseconds of our own per request")
    for name in ("what", "requests per bundle", "us / request"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for one in rows:
        table.add_row(one["what"], str(one["slot"]), f"{one['us_per_request']:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
