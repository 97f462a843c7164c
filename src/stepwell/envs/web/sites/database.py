"""The seeded database, and a private copy of it for every episode.

A world is built once per seed and size and kept as the bytes of an SQLite file. An episode is a connection
to a copy of these bytes in memory. Nothing is shared, and a roll-back forgets all changes.

Invariants
* The same seed and size give the same rows on every machine.
* Pages write only to the episode's copy. `find_changes` sees every table but `state`.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, Literal, get_args

from stepwell.core.errors import InputError
from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.web.sites.routes import count_minutes, read_roads, search_roads
from stepwell.envs.web.sites.seeding import SCHEMAS, SEEDERS
from stepwell.envs.web.sites.seeding.words import load_words

Size = Literal["tiny", "full"]
MAX_STATEMENTS = 512  # all statements of the pages: none is compiled twice for a connection
ROWS_PER_PAGE = {"tiny": 3, "full": 10}


@lru_cache(maxsize=64)
def build_world(seed: int, size: str) -> bytes:
    """The bytes of the database that a seed makes."""
    if size not in get_args(Size):
        raise InputError(f"size must be tiny or full, got {size!r}")
    words = load_words(size)
    with closing(sqlite3.connect(":memory:")) as db:
        for schema in SCHEMAS:
            db.executescript(schema)
        for name, seeder in SEEDERS.items():
            seeder(db, random.Random(f"{seed}/{size}/{name}"), words)
        db.commit()
        return bytes(db.serialize())


def open_copy(data: bytes) -> sqlite3.Connection:
    """A connection to a copy of a database, in memory; statements commit by themselves."""
    db = sqlite3.connect(
        ":memory:", check_same_thread=False, isolation_level=None, cached_statements=MAX_STATEMENTS
    )
    db.deserialize(data)
    db.row_factory = sqlite3.Row
    db.create_function("dollars", 1, format_dollars, deterministic=True)
    return db


def add_route_functions(db: sqlite3.Connection) -> None:
    """`route_length(a, b)` and `route_minutes(a, b, mode)`, for the answers of tasks."""
    roads = read_roads(db)

    def measure_length(start: int, end: int) -> int:
        return search_roads(roads, start, end)[0]

    def measure_minutes(start: int, end: int, mode: str) -> int:
        return count_minutes(measure_length(start, end), mode)

    db.create_function("route_length", 2, measure_length, deterministic=True)
    db.create_function("route_minutes", 3, measure_minutes, deterministic=True)


_KEPT = threading.local()


def open_reader(seed: int, size: str) -> sqlite3.Connection:
    """This thread's connection to an unchanged world, for drawing tasks; nobody writes to it."""
    return _open_kept(seed, size, is_scratch=False)


@contextmanager
def open_scratch(seed: int, size: str) -> Iterator[sqlite3.Connection]:
    """This thread's connection to a world that may be written to; all is undone at the end."""
    db = _open_kept(seed, size, is_scratch=True)
    db.execute("BEGIN")
    try:
        yield db
    finally:
        db.execute("ROLLBACK")


def _open_kept(seed: int, size: str, *, is_scratch: bool) -> sqlite3.Connection:
    kept: dict[tuple[int, str, bool], sqlite3.Connection] = _KEPT.__dict__.setdefault("kept", {})
    key = seed, size, is_scratch
    if key not in kept:
        kept[key] = open_copy(build_world(seed, size))
        if not is_scratch:
            kept[key].execute("PRAGMA query_only = 1")
    return kept[key]


def list_tables(db: sqlite3.Connection) -> list[str]:
    """Tables with content, which is all but `state`."""
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    return [row[0] for row in found if row[0] != "state" and not row[0].startswith("sqlite_")]


def read_rows(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table as they lie."""
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor.execute(f"SELECT * FROM {table}").fetchall()


def find_changes(before: sqlite3.Connection, after: sqlite3.Connection) -> list[str]:
    """Names of the tables whose content differs, without regard to order, case and blanks."""
    tables = list_tables(before)
    return [table for table in tables if not match_rows(read_rows(before, table), read_rows(after, table))]


def match_rows(old: list[tuple[Any, ...]], new: list[tuple[Any, ...]]) -> bool:
    """Whether two tables have the same rows, without regard to order, case and blanks."""
    return old == new or _fold_rows(old) == _fold_rows(new)


def _fold_rows(rows: list[tuple[Any, ...]]) -> list[str]:
    folded = (tuple(" ".join(v.split()).casefold() if isinstance(v, str) else v for v in row) for row in rows)
    return sorted(map(repr, folded))
