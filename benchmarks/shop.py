"""The shop: how long its catalogue takes to build, how fast it answers, and what can be had in it.

Build: the catalogue made from nothing into an empty cache (products made up, written, indexed). Queries:
each asked once, none of them asked before, by kind of query; `again` asks the same ones a second time,
which the process remembers. Turns: random episodes, resets included, one environment on one thread
(`benchmarks/env_service_speed.py` measures environments behind a service). Oracle and random play: held-out
tasks, share bought with a full score; for the oracle also the turns it takes, which are the proven fewest.

    python benchmarks/shop.py                                        # the tables, and results/shop.json
    python benchmarks/shop.py --num-products 2000 --num-tasks 20 --seconds 0.3 --no-write
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.core import Split, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.products import Store, open_generated_catalogue
from stepwell.envs.shop.shop import open_shop

RESULT = Path(__file__).parent / "results" / "shop.json"
Options = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-products", type=int, default=50_000, help="of the full shop")
    parser.add_argument(
        "--num-tasks", type=int, default=500, help="held-out tasks for oracle and random play"
    )
    parser.add_argument("--num-queries", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="time given to each speed")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    shops: dict[str, Options] = {
        "full": {"num_products": args.num_products},
        "tiny": {"size": "tiny"},
    }
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "build": [build(name, ShopOptions(**options)) for name, options in shops.items()],
        "queries": queries(ShopOptions(**shops["full"]), args.num_queries),
        "turns": [turns(name, options, args.seconds) for name, options in shops.items()],
        "play": [play(name, options, args.num_tasks) for name, options in shops.items()],
    }
    show(result)
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def build(name: str, options: ShopOptions) -> dict[str, Any]:
    """One catalogue, from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        store = open_generated_catalogue(options.size, options.catalogue_seed, options.products, Path(folder))
        seconds = time.perf_counter() - start
        size = store.path.stat().st_size
    return {
        "shop": name,
        "num_products": options.products,
        "build_s": round(seconds, 2),
        "megabytes": round(size / 1e6, 1),
        "digest": store.digest,
    }


def queries(options: ShopOptions, count: int) -> list[dict[str, Any]]:
    """Times of single searches, by kind."""
    shop, rng = open_shop(options), random.Random(0)
    store = Store(shop.store.path)  # one that has not been asked anything
    goals = [shop.goal(10**6 + seed) for seed in range(count)]
    products = [store.product(rng.randint(1, store.num_products)) for _ in range(count)]
    kinds = {
        "kind and attributes": [" ".join([*goal.attributes, goal.kind]) for goal in goals],
        "a whole instruction": [goal.instruction for goal in goals],
        "a whole title": [product.title for product in products],
        "a sentence of common words": [product.features[0] for product in products],
    }
    rows = [_timed(store, kind, dict.fromkeys(texts)) for kind, texts in kinds.items()]
    again = _timed(store, "kind and attributes, again", dict.fromkeys(kinds["kind and attributes"]))
    return [*rows, again]


def _timed(store: Store, kind: str, texts: dict[str, None]) -> dict[str, Any]:
    times = []
    for text in texts:
        start = time.perf_counter()
        store.search(text)
        times.append((time.perf_counter() - start) * 1e3)
    cuts = statistics.quantiles(times, n=100)
    return {"kind": kind, "count": len(times), "p50_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3)}


def turns(name: str, options: Options, seconds: float) -> dict[str, Any]:
    """Turns of random play per second."""
    tasks = draw_tasks("shop", options, Split.TRAIN, 200, seed=0)
    env = make_env("shop", options)
    env.reset(options={"task": tasks[0]})  # opens the catalogue
    start = time.perf_counter()
    count = _play_on(env, tasks, seconds)
    return {"shop": name, "where": "process", "turns_per_s": round(count / (time.perf_counter() - start))}


def _play_on(env: Any, tasks: list[Task], seconds: float) -> int:
    rng, until, count = random.Random(0), time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        env.reset(options={"task": rng.choice(tasks)})
        over = False
        while not over:
            _, _, over, _, _ = env.step([env.random_action(rng)])
            count += 1
    return count


def play(name: str, options: Options, count: int) -> dict[str, Any]:
    """What oracle and random play get out of held-out tasks."""
    tasks = draw_tasks("shop", options, Split.HELD_OUT, count, seed=0)
    env, rng = make_env("shop", options), random.Random(0)
    oracle, luck, scores, lengths = 0, 0, 0.0, Counter[int]()
    for task in tasks:
        _, told = env.reset(options={"task": task})
        info = _episode(env, lambda: env.oracle()[0])
        oracle += info["success"]
        assert info["turns"] == told["golden"], "the oracle took more turns than are proven to suffice"
        lengths[info["turns"]] += 1
        env.reset(options={"task": task})
        info = _episode(env, lambda: env.random_action(rng))
        luck += info["success"]
        scores += info.get("score", 0.0)
    return {
        "shop": name,
        "num_tasks": count,
        "oracle": oracle / count,
        "random": luck / count,
        "random_score": round(scores / count, 4),
        "golden_steps": {str(length): lengths[length] for length in sorted(lengths)},
    }


def _episode(env: Any, choose: Any) -> dict[str, Any]:
    num_turns = 0
    while True:
        _, _, terminated, _, info = env.step([choose()])
        num_turns += 1
        if terminated:
            return {**info, "turns": num_turns}


def show(result: dict[str, Any]) -> None:
    console = Console()
    console.print(result["machine"])
    for title in ("build", "queries", "turns", "play"):
        rows = result[title]
        table = Table(*rows[0], title=title)
        for row in rows:
            table.add_row(*(json.dumps(v) if isinstance(v, dict) else f"{v}" for v in row.values()))
        console.print(table)


if __name__ == "__main__":
    main()
