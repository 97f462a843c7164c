"""Multi-hop QA: how long indexes take to build and queries to answer, steps per second, who succeeds.

One thread. Queries are held-out questions and the titles that the oracle searches for, half and half. BM25 is
measured beside SQLite's FTS5 and, where it is installed, the package bm25s, on the same passages and
queries. `oracle` and `random` are shares of held-out tasks solved; `visible` is the share of held-out
questions whose answer stands anywhere in what one search by the whole question shows: an upper bound
for play that searches once.

    python benchmarks/multihop_qa.py       # all of it, and results/multihop_qa.json; a quarter hour
    python benchmarks/multihop_qa.py --kinds bm25 --tasks 50 --queries 100 --no-write
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from stepwell.core import Split, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import draw_random_turn, measure_random_play
from stepwell.envs.multihop_qa.facts import SOURCES, Collection
from stepwell.envs.multihop_qa.facts.graph import make_key
from stepwell.envs.multihop_qa.options import MultihopOptions
from stepwell.envs.multihop_qa.questions import COLLECTIONS, find_collection
from stepwell.envs.retrieval import KINDS, IndexKind, SearchIndex
from stepwell.envs.retrieval.text import split_query

RESULT = Path(__file__).parent / "results" / "multihop_qa.json"
NAME = "multihop_qa"
FORMS = [{"size": size, "domain": domain} for size, domain in COLLECTIONS]
K = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--tasks", type=int, default=500, help="held-out tasks of every form")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="time given to each speed of steps")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "collections": lambda: [measure_collection(name) for name in SOURCES],
        "search": lambda: measure_search(args.kinds, args.queries),
        "worlds": lambda: [measure_world(form, args.tasks, args.seconds) for form in FORMS],
        "oracle_by_index": lambda: measure_oracle_by_index(args.kinds, args.tasks),
    }
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one thread"
    }
    for title, measure in parts.items():
        result[title] = measure()
        show(title, result[title])
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def measure_collection(name: str) -> dict[str, Any]:
    """Build from the packages' tables, without the cache."""
    found: Collection
    found, build_s = timed(SOURCES[name][1])
    num_words = sum(len(document.text.split()) for document in found.documents) / len(found.documents)
    return {
        "collection": name,
        "passages": len(found.documents),
        "words per passage": round(num_words, 1),
        "questions": len(found.questions),
        "build s": round(build_s, 2),
        "digest": found.digest()[:12],
    }


def measure_search(kinds: Sequence[IndexKind], num_queries: int) -> list[dict[str, Any]]:
    """Build and query times over the atlas."""
    atlas = find_collection(MultihopOptions())
    queries = draw_queries(num_queries)
    rows = []
    for kind in kinds:
        print(f"index {kind}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            index, build_s = timed(lambda: SearchIndex.build(atlas.documents, kind, Path(folder)))  # noqa: B023
            _, again_s = timed(lambda: SearchIndex.build(atlas.documents, kind, Path(folder)))  # noqa: B023
        rows.append({"index": kind, **speeds(build_s, lambda query: index.search(query, K), queries)})  # noqa: B023
        rows[-1]["again s"] = round(again_s, 2)
    if "bm25" in kinds:
        rows += measure_peers(atlas, queries)
    return rows


def measure_peers(atlas: Collection, queries: Sequence[str]) -> list[dict[str, Any]]:
    """FTS5 and bm25s, asked for the documents that hold any of the words."""
    database = sqlite3.connect(":memory:")

    def fill() -> None:
        database.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text)")
        values = [(document.title, document.text) for document in atlas.documents]
        database.executemany("INSERT INTO passages VALUES (?, ?)", values)

    statement = "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, 3, 1) LIMIT ?"

    def ask(query: str) -> None:
        quoted = " OR ".join(f'"{word}"' for word in split_query(query))
        database.execute(statement, (quoted, K)).fetchall()

    rows = [{"index": "SQLite FTS5", **speeds(timed(fill)[1], ask, queries)}]
    if importlib.util.find_spec("bm25s") is not None:
        import bm25s

        def build() -> Any:
            retriever = bm25s.BM25(k1=1.2)
            texts = [document.counted for document in atlas.documents]
            retriever.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)
            return retriever

        retriever, build_s = timed(build)

        def ask_peer(query: str) -> None:
            tokens = bm25s.tokenize([query], stopwords=None, show_progress=False)
            retriever.retrieve(tokens, k=K, show_progress=False)

        rows.append({"index": "bm25s", **speeds(build_s, ask_peer, queries)})
    return rows


def measure_world(form: dict[str, str], num_tasks: int, seconds: float) -> dict[str, Any]:
    """Who succeeds in one form of the environment, and how fast it goes."""
    tasks = draw_tasks(NAME, form, Split.HELD_OUT, num_tasks, seed=0)
    return {
        "form": f"{form['size']}, {form['domain']}",
        "oracle": round(oracle_success(form, tasks), 3),
        "random": round(measure_random_play(NAME, form, tasks, seed=0), 3),
        "visible": round(visible_share(form, tasks), 3),
        "turns/s, 1 search": round(turns_per_s(form, tasks, 1, seconds)),
        "turns/s, 4 searches": round(turns_per_s(form, tasks, 4, seconds)),
    }


def measure_oracle_by_index(kinds: Sequence[IndexKind], num_tasks: int) -> list[dict[str, Any]]:
    """The oracle's success over the atlas by kind of index: whether titles find their passages."""
    tasks = draw_tasks(NAME, {}, Split.HELD_OUT, num_tasks, seed=0)
    return [{"index": kind, "oracle": round(oracle_success({"index": kind}, tasks), 3)} for kind in kinds]


def oracle_success(options: dict[str, str], tasks: Sequence[Task]) -> float:
    env = make_env(NAME, options)
    num_solved = 0
    for task in tasks:
        env.reset(options={"task": task})
        while True:
            _, _, terminated, _, info = env.step(env.oracle())
            if terminated:
                break
        num_solved += bool(info["success"])
    return num_solved / len(tasks)


def visible_share(options: dict[str, str], tasks: Sequence[Task]) -> float:
    env = make_env(NAME, options)
    num_visible = 0
    for task in tasks:
        content: Any = task.content
        hits = env.index.search(content["question"], env.options.results_per_search)
        shown = " ".join(make_key(env.index[hit.id].searched) for hit in hits)
        num_visible += f" {make_key(content['answers'][0])} " in f" {shown} "
    return num_visible / len(tasks)


def turns_per_s(options: dict[str, str], tasks: Sequence[Task], num_calls: int, seconds: float) -> float:
    """Random turns of so many calls, resets included."""
    env, rng = make_env(NAME, options), random.Random(0)
    num_turns, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        env.reset(options={"task": rng.choice(tasks)})
        over = False
        while not over:
            _, _, over, _, _ = env.step(draw_random_turn(env, rng, num_calls))
            num_turns += 1
    return num_turns / (time.perf_counter() - start)


def draw_queries(count: int) -> list[str]:
    env = make_env(NAME)
    tasks = draw_tasks(NAME, {}, Split.HELD_OUT, (count + 1) // 2, seed=1)
    found = []
    for task in tasks:
        content: Any = task.content
        found += [content["question"], env.index[content["plan"][0][0]].title]
    return found[:count]


def speeds(build_s: float, ask: Callable[[str], object], queries: Sequence[str]) -> dict[str, Any]:
    for query in queries[:10]:
        ask(query)  # what is loaded on first use
    times = sorted(timed(lambda: ask(query))[1] for query in queries)  # noqa: B023
    return {
        "build s": round(build_s, 2),
        "p50 ms": round(1e3 * times[len(times) // 2], 3),
        "p99 ms": round(1e3 * times[int(0.99 * len(times))], 3),
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title=title)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
