"""Paper search: how fast its graph, its index and its turns are, and what can be reached in it.

* graph and index: seconds to make them (nothing cached, but for the sentence vectors that a kind of search
  before this one made), and to read the graph from the cache;
* queries: milliseconds of a search, median and 99th percentile, over requests that were not asked before;
* turns per second of random play and of the oracle, resets included, one thread;
* F1, recall and success on held-out tasks, of: the oracle; random play; one search in the request's words;
  that search and then expansions of what shares most words with the request (no knowledge of relevance);
  searches in every form of the need (an agent that knows all synonyms and follows no citation).

No pool has an F1 above 1, so the oracle's F1 is also the share of the bound that it reaches.

    python benchmarks/paper_search.py                      # BM25, both sizes; results/paper_search.json
    python benchmarks/paper_search.py --kinds bm25 dense hybrid    # a quarter hour
    python benchmarks/paper_search.py --papers 1000 --tasks 20 --no-write
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from stepwell.core import Split, Task, ToolCall
from stepwell.envs import draw_tasks
from stepwell.envs.baselines import draw_random_turn
from stepwell.envs.paper_search.env import PaperSearch
from stepwell.envs.paper_search.guide import name_paper_argument
from stepwell.envs.paper_search.library import build_index
from stepwell.envs.paper_search.options import PaperSearchOptions
from stepwell.envs.paper_search.papers.generator import generate_graph, open_generated_graph
from stepwell.envs.paper_search.pool import normalise_query
from stepwell.envs.paper_search.searcher import list_queries

RESULT = Path(__file__).parent / "results" / "paper_search.json"
Player = Callable[[PaperSearch], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["full", "tiny"], choices=["full", "tiny"])
    parser.add_argument("--kinds", nargs="+", default=["bm25"], choices=["bm25", "dense", "hybrid"])
    parser.add_argument(
        "--papers", type=int, default=None, help="papers of the graph, in place of the size's"
    )
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks that are played")
    parser.add_argument("--queries", type=int, default=1000, help="searches that are timed")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STEPWELL_CACHE"] = cache
        for size, kind in product(args.sizes, args.kinds):
            options = PaperSearchOptions(size=size, search=kind, num_papers=args.papers)
            rows.append({"size": size, "search": kind} | measured(options, args.tasks, args.queries))
            show(rows[-1])
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one thread",
        "rows": rows,
    }
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def measured(options: PaperSearchOptions, num_tasks: int, num_queries: int) -> dict[str, Any]:
    """All figures of one size and one kind of search."""
    made = build_times(options)
    env = PaperSearch(options)
    env.reset(seed=0)
    made["requests"] = env.library.num_requests
    made["query_ms"] = query_times(env, num_queries)
    share = 0.4 if options.size == "tiny" else 0.2  # of so few tasks more are held out, as in the preset
    tasks = draw_tasks("paper_search", options, Split.HELD_OUT, num_tasks, seed=0, held_out_share=share)
    rng = random.Random(0)
    players: dict[str, Player] = {
        "oracle": lambda env: env.oracle(),
        "random play": lambda env: draw_random_turn(env, rng, env.description.actions.max_per_turn),
        "one search": one_search,
        "search, then expand": search_and_expand,
        "search in all forms": all_forms,
    }
    made["players"] = {name: played(env, tasks, play) for name, play in players.items()}
    return made


def build_times(options: PaperSearchOptions) -> dict[str, Any]:
    start = time.perf_counter()
    graph = generate_graph(options.graph_spec)
    graph_s = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        open_generated_graph(options.graph_spec, Path(folder))
        start = time.perf_counter()
        open_generated_graph(options.graph_spec, Path(folder))
        load_s = time.perf_counter() - start
    start = time.perf_counter()
    build_index(graph, options.search)
    index_s = time.perf_counter() - start
    return {
        "papers": len(graph),
        "citations": len(graph.cited),
        "graph_s": round(graph_s, 2),
        "load_s": round(load_s, 3),
        "index_s": round(index_s, 2),
    }


def query_times(env: PaperSearch, count: int) -> dict[str, float]:
    """Of searches for parts of titles, straight at the index."""
    rng, index, titles = random.Random(0), env.library.index, env.library.graph.titles
    spent = []
    for _ in range(count):
        words = rng.choice(titles).split()
        query = " ".join(rng.sample(words, min(5, len(words))))
        start = time.perf_counter()
        index.search(query, env.library.limits.num_results)
        spent.append(1000 * (time.perf_counter() - start))
    spent.sort()
    return {"p50": round(statistics.median(spent), 3), "p99": round(spent[int(0.99 * len(spent))], 3)}


def played(env: PaperSearch, tasks: list[Task], play: Player) -> dict[str, float]:
    """Means over whole episodes."""
    ends, returns, start = [], [], time.perf_counter()
    for task in tasks:
        env.reset(options={"task": task})
        earned, terminated = 0.0, False
        while not terminated:
            turn = play(env)[: env.description.actions.max_per_turn]
            _, reward, terminated, _, info = env.step(turn)
            earned += reward
        ends.append(info)
        returns.append(earned)
    turns_per_s = len(tasks) * env.description.max_turns / (time.perf_counter() - start)
    told = ("f1", "recall", "precision", "success", "pool_size", "num_searches", "num_expansions")
    means = {name: round(statistics.mean(float(info[name]) for info in ends), 3) for name in told}
    least = round(min(float(info["f1"]) for info in ends), 3)
    return means | {
        "least_f1": least,
        "return": round(statistics.mean(returns), 2),
        "turns_per_s": round(turns_per_s, 1),
    }


def one_search(env: PaperSearch) -> list[str]:
    return [] if env.pool.queries else [search(env.request.text)]


def search_and_expand(env: PaperSearch) -> list[str]:
    if not env.pool.queries:
        return [search(env.request.text)]
    ids = env.library.graph.ids
    left = sorted(env.pool.new + env.pool.old, key=lambda paper: -env.selector.share_of_words(paper))
    return [ToolCall("expand", {name_paper_argument(env.options.limits): ids[paper]}).text for paper in left]


def all_forms(env: PaperSearch) -> list[str]:
    queries = list_queries(env.library, env.request)
    return [search(query) for query in queries if normalise_query(query) not in env.pool.queries]


def search(query: str) -> str:
    return ToolCall("search", {"query": query}).text


def show(row: dict[str, Any]) -> None:
    built = f"graph {row['graph_s']} s (cached {row['load_s']} s), index {row['index_s']} s"
    asked_for = f"query p50 {row['query_ms']['p50']} ms, p99 {row['query_ms']['p99']} ms"
    head = f"{row['size']}, {row['search']}: {row['papers']:,} papers, {row['citations']:,} citations"
    told = ("f1", "least_f1", "recall", "success", "return", "num_searches", "num_expansions", "turns_per_s")
    table = Table("player", *told, title=f"{head}, {row['requests']:,} requests; {built}; {asked_for}")
    for name, means in row["players"].items():
        table.add_row(name, *(f"{means[key]:g}" for key in told))
    Console().print(table)


if __name__ == "__main__":
    main()
