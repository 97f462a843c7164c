"""How fast the pool takes and gives steps, and whether that depends on how much it holds.

Steps have 500 to 1130 prompt ids and 30 action ids (ten turns of a dialogue), one `append` per step, as
the gateway does it. Rows: one writer, eight writer processes, eight threads of one process (which share
commits), then reading: whole groups by `take`, and all trajectories in order. Each is measured in a pool
of 10^4 and one of 10^6 steps, in SQLite and in a private PostgreSQL; the two pools stand side by side and
take turns, a few rounds of each row, because a machine's own speed changes from minute to minute. Figures
are medians over rounds; `of small` is the median of the rounds' ratios. The stored steps are real ones: a
hundred played trajectories, then copied inside the database under other ids. What is to be written is on
the disk before a row is measured. PostgreSQL's autovacuum is off, so that it plans without statistics, as
it does after a pool was filled and before it has looked at it; the last rows are taken again after
`VACUUM ANALYZE`.

    python benchmarks/pool_speed.py             # the table, and results/pool_speed.json; some minutes
    python benchmarks/pool_speed.py --quick     # small pools, short runs, no file
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, func, select, text

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.pool.postgres import binaries, database, server

from stepwell.core import Status, Step, Task, Trajectory, make_id
from stepwell.pool import Filter, Pool, open_pool
from stepwell.pool.schema import groups, steps, trajectories

RESULT = Path(__file__).parent / "results" / "pool_speed.json"
TASK = Task("bench", {"n": 1})
TURNS = 10
NUM_WRITERS = 8
PLAYED = 1000  # steps that are really encoded; the rest of a store is copied from them


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10^3 and 10^4 stored steps, one short round")
    parser.add_argument("--seconds", type=float, default=1.5, help="time given to each round of a row")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    sizes = (1_000, 10_000) if args.quick else (10_000, 1_000_000)
    seconds, rounds = (0.5, 1) if args.quick else (args.seconds, args.rounds)
    rows = [row for name, where in DATABASES.items() for row in measure(name, where, sizes, rounds, seconds)]
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "step": {"prompt_ids": "500 to 1130", "action_ids": 30, "turns": TURNS},
        "rounds": rounds,
        "seconds": seconds,
        "rows": rows,
    }
    show(result)
    if not args.quick and not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


@contextmanager
def sqlite_place() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"{folder}/pool.db"


@contextmanager
def postgres_place() -> Iterator[str]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}
    with server(**settings) as url, database(url) as place:
        yield place


DATABASES = {"SQLite": sqlite_place, "PostgreSQL": postgres_place}  # a new, empty place in each


def dialogue(seed: int = 0) -> list[Step]:
    rng = np.random.default_rng(seed)
    ids, made = rng.integers(0, 50_000, 500), []
    for _ in range(TURNS):
        action = rng.integers(0, 50_000, 30)
        made.append(
            Step.from_tokens(
                ids,
                action,
                behavior_logprobs=-rng.random(30),
                text="I go left, then down. " * 5,
                policy_version=3,
            )
        )
        ids = np.concatenate([ids, action, rng.integers(0, 50_000, 40)])
    return made


def fill(place: str, num_steps: int) -> None:
    """A store of consumed trajectories: some played, the rest copies of them."""
    with open_pool(place) as pool:
        played = [
            Trajectory(TASK, dialogue(seed), Status.SUCCESS, id=f"stored-{seed}")
            for seed in range(min(PLAYED, num_steps) // TURNS)
        ]
        pool.add(played)
        taken = pool.take("history", len(played))
        pool.acknowledge("history", [group.group for group in taken], 0)
        for number in range(1, num_steps // (len(played) * TURNS)):
            pool._db.write(lambda connection, number=number: copy(connection, number, len(played)))
        if pool._db.is_postgres:
            pool._db.write(lambda connection: count_on(connection))


def copy(connection: Connection, number: int, num_played: int) -> None:
    """The played trajectories once more, under later numbers and other names."""
    offset, ending = number * num_played, f"~{number}"
    for table, moved, named in (
        (groups, ("seq",), "name"),
        (trajectories, ("seq", "group"), "id"),
        (steps, ("trajectory",), ""),
    ):
        key = table.c.trajectory if table is steps else table.c.seq
        chosen = [
            (column + offset if column.name in moved else column + ending if column.name == named else column)
            for column in table.c
        ]
        source = select(*chosen).where(key <= num_played)
        connection.execute(table.insert().from_select([column.name for column in table.c], source))


def count_on(connection: Connection) -> None:
    for table in (groups, trajectories):
        newest = connection.execute(select(func.max(table.c.seq))).scalar_one()
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'seq'), {newest})"))


def measure(
    name: str, where: Callable[[], Any], sizes: tuple[int, ...], rounds: int, seconds: float
) -> list[dict[str, Any]]:
    if where is postgres_place and binaries() is None:
        print("PostgreSQL is not installed: its rows are left out", file=sys.stderr)
        return []
    with ExitStack() as stack:
        places = {size: stack.enter_context(where()) for size in sizes}
        for size, place in places.items():
            fill(place, size)
        found = []
        for kind, measured in kinds(where is postgres_place, seconds).items():
            for place in places.values():
                settle(place, "CHECKPOINT")
            tried = [{size: measured(place) for size, place in places.items()} for _ in range(rounds)]
            for size in sizes:
                figures = {key: middle(each[size][key] for each in tried) for key in tried[0][size]}
                ratio = middle(each[size]["steps_per_s"] / each[sizes[0]]["steps_per_s"] for each in tried)
                row = {"database": name, "stored_steps": size, "what": kind, **figures, "of_small": ratio}
                print(json.dumps(row), file=sys.stderr, flush=True)
                found.append(row)
    return found


def middle(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def kinds(is_postgres: bool, seconds: float) -> dict[str, Callable[[str], dict[str, Any]]]:
    """How each row is measured in a place."""
    found: dict[str, Callable[[str], dict[str, Any]]] = {
        "append, 1 writer": lambda place: append_in_processes(place, 1, seconds),
        f"append, {NUM_WRITERS} processes": lambda place: append_in_processes(place, NUM_WRITERS, seconds),
        f"append, {NUM_WRITERS} threads": lambda place: append_in_threads(place, seconds),
        "read by take": lambda place: read_groups(place, seconds, 8),
        "read by take of 64": lambda place: read_groups(place, seconds, 64),
        "read in order": lambda place: read_all(place, seconds),
    }
    if is_postgres:
        found["read by take, analysed"] = lambda place: read_groups(place, seconds, 8, "VACUUM ANALYZE")
        found["read by take of 64, analysed"] = lambda place: read_groups(place, seconds, 64)
    return found


def settle(place: str, *commands: str) -> None:
    """Have PostgreSQL do so now, and everything that is to be written reach the disk."""
    if "://" in place:
        with psycopg.connect(place, autocommit=True) as connection:
            for command in commands:
                connection.execute(command)  # type: ignore[call-overload]
    os.sync()


def play(pool: Pool, seconds: float, waits: list[float]) -> None:
    """Begin, append ten times, finish; until the time is over."""
    turns = dialogue(os.getpid())
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        id = pool.begin(TASK, id=make_id("bench"))
        for number, step in enumerate(turns):
            start = time.perf_counter()
            pool.append(id, number, [step])
            waits.append(time.perf_counter() - start)
        pool.finish(id, Status.SUCCESS)


def append_in_processes(place: str, num: int, seconds: float) -> dict[str, Any]:
    """Forked writers, each with a pool of its own; they report through pipes."""

    def work(report: int) -> None:
        waits: list[float] = []
        with open_pool(place) as pool:
            play(pool, 0.1, [])
            play(pool, seconds, waits)
        with os.fdopen(report, "w") as file:
            json.dump(waits, file)

    return summary([wait for waits in forked(work, num) for wait in waits], seconds)


def forked(work: Callable[[int], None], num: int) -> list[list[float]]:
    pipes = []
    for _ in range(num):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                work(write_end)
            finally:
                os._exit(0)
        os.close(write_end)
        pipes.append((pid, read_end))
    found = []
    for pid, read_end in pipes:
        with os.fdopen(read_end) as file:
            found.append(json.load(file))
        os.waitpid(pid, 0)
    return found


def append_in_threads(place: str, seconds: float) -> dict[str, Any]:
    waits: list[list[float]] = [[] for _ in range(NUM_WRITERS)]
    with open_pool(place) as pool:
        threads = [threading.Thread(target=play, args=(pool, seconds, each)) for each in waits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return summary([wait for each in waits for wait in each], seconds)


def summary(waits: list[float], seconds: float) -> dict[str, Any]:
    waits.sort()
    return {
        "steps_per_s": round(len(waits) / seconds),
        "p50_ms": round(1e3 * statistics.median(waits), 2),
        "p99_ms": round(1e3 * waits[int(0.99 * len(waits))], 2),
    }


@contextmanager
def timed(waits: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    waits.append(time.perf_counter() - start)


def read_groups(place: str, seconds: float, num_groups: int, *before: str) -> dict[str, Any]:
    """What a trainer does: take groups, acknowledge them. The groups are those just written."""
    waits: list[float] = []
    num_steps = 0
    with open_pool(place) as pool:
        pool.restore("bench", None)  # what an earlier row has taken
        settle(place, "CHECKPOINT", *before)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            with timed(waits):
                taken = pool.take("bench", num_groups)
            if not taken:
                break
            num_steps += sum(len(t.steps) for group in taken for t in group.trajectories)
            pool.acknowledge("bench", [group.group for group in taken], 0)
        spent = time.perf_counter() - start
    return {**summary(waits, spent), "steps_per_s": round(num_steps / spent)}


def read_all(place: str, seconds: float) -> dict[str, Any]:
    num_steps, start = 0, time.perf_counter()
    with open_pool(place) as pool:
        for trajectory in pool.trajectories(Filter(is_open=False)):
            num_steps += len(trajectory.steps)
            if time.perf_counter() - start > seconds:
                break
    return {"steps_per_s": round(num_steps / (time.perf_counter() - start))}


def show(result: dict[str, Any]) -> None:
    titles = ("database", "what", "stored steps", "steps/s", "p50 ms", "p99 ms", "of small")
    table = Table(*titles, title=result["machine"])
    for row in sorted(result["rows"], key=lambda row: (row["database"], row["what"], row["stored_steps"])):
        figures = [str(row.get(name, "–")) for name in ("p50_ms", "p99_ms", "of_small")]
        speed = f"{row['steps_per_s']:,.0f}"
        table.add_row(row["database"], row["what"], f"{row['stored_steps']:,}", speed, *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
