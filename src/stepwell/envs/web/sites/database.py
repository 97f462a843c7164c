"""The seeded database, and a private copy of it for every episode.

A world is built once per seed and size and kept as the bytes of an SQLite file. An episode is a connection
to a copy of these bytes in memory: copying costs microseconds (tiny) to a millisecond (full), nothing is
shared, and closing the connection forgets all changes.

Invariants
* The same seed and size give the same rows on every machine.
* Pages write only to the episode's copy. `compare_content` sees every table but `state`.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, get_args

from stepwell.core.errors import InputError
from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.web.sites.routes import count_minutes, read_roads, search_roads
from stepwell.envs.web.sites.seeding import SCHEMAS, SEEDERS
from stepwell.envs.web.sites.seeding.words import load_words

Size = Literal["tiny", "full"]
ROWS_PER_PAGE = {"tiny": 3, "full": 10}


@lru_cache(maxsize=8)
def build_world(seed: int, size: str) -> bytes:
    """The bytes of the database that a seed makes."""
    if size not in get_args(Size):
        raise InputError(f"size must be tiny or full, got {size!r}")
    db = sqlite3.connect(":memory:")
    for schema in SCHEMAS:
        db.executescript(schema)
    words = load_words(size)
    for name, seeder in SEEDERS.items():
        seeder(db, random.Random(f"{seed}/{size}/{name}"), words)
    db.commit()
    return bytes(db.serialize())


def open_copy(data: bytes) -> sqlite3.Connection:
    """A connection to a copy of a database, in memory; statements commit by themselves."""
    db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
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


_READERS = threading.local()


def open_reader(seed: int, size: str) -> sqlite3.Connection:
    """This thread's connection to an unchanged world, for drawing tasks."""
    kept: dict[tuple[int, str], sqlite3.Connection] = _READERS.__dict__.setdefault("kept", {})
    if (seed, size) not in kept:
        kept[seed, size] = open_copy(build_world(seed, size))
        kept[seed, size].execute("PRAGMA query_only = 1")
    return kept[seed, size]


def list_tables(db: sqlite3.Connection) -> list[str]:
    """Tables with content, which is all but `state`."""
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    return [row[0] for row in found if row[0] != "state" and not row[0].startswith("sqlite_")]


def read_content(db: sqlite3.Connection) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Every table with its rows in a fixed order, texts without regard to case and blanks."""
    for table in list_tables(db):
        yield table, sorted((_fold_row(row) for row in db.execute(f"SELECT * FROM {table}")), key=repr)


def _fold_row(row: sqlite3.Row) -> tuple[Any, ...]:
    return tuple(" ".join(value.split()).casefold() if isinstance(value, str) else value for value in row)


def find_changes(before: sqlite3.Connection, after: sqlite3.Connection) -> list[str]:
    """Names of the tables whose content differs."""
    pairs = zip(read_content(before), read_content(after), strict=True)
    return [table for (table, old), (_, new) in pairs if old != new]
