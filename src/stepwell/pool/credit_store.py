"""`credit.db` of a run folder: what every update made of its trajectories, readable by trajectory.

    update u ─► CreditStore.write(u, records) ─► oldest updates dropped ─► read_credit(folder, trajectory)

Invariants
* A trajectory has at most one record per update. A resumed run calls `rewind` with the update of its
  checkpoint, and writes the later ones again.
* An update's records are in the file completely or not at all.
* Records take at most `max_mb` megabytes after a write (an update that alone is larger is not stored). Whole
  updates are dropped, the oldest first, and their space in the file is used again.
* Any number of processes may read while a run writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from stepwell.core.errors import InputError
from stepwell.pool.credit_records import CreditRecord, encode_record

FILE_NAME = "credit.db"
_MB = 1_000_000
_TABLE = """
CREATE TABLE IF NOT EXISTS credit (
    number INTEGER NOT NULL, trajectory TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (number, trajectory)
);
CREATE INDEX IF NOT EXISTS credit_by_trajectory ON credit (trajectory, number);
CREATE TABLE IF NOT EXISTS updates (number INTEGER PRIMARY KEY, size INTEGER NOT NULL);
"""


class CreditStore:
    """Writes the credit of one run. Use as a context manager, or call `close`."""

    def __init__(self, folder: Path, max_mb: float) -> None:
        if max_mb <= 0:
            raise InputError(f"max_mb is {max_mb}; it must be above 0")
        self._max_bytes = max_mb * _MB
        self._db = sqlite3.connect(folder / FILE_NAME, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA journal_size_limit = {_MB}")
        self._db.executescript(_TABLE)

    def __enter__(self) -> CreditStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def write(self, update: int, records: Sequence[CreditRecord]) -> None:
        """Store the records of an update in place of earlier ones; drop the oldest updates if it is full."""
        rows = [(update, record.trajectory, encode_record(record)) for record in records]
        size = sum(len(data) + len(name) + 16 for _, name, data in rows)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._drop_updates("number = ?", update)
            if rows and size <= self._max_bytes:
                self._db.execute("INSERT INTO updates VALUES (?, ?)", (update, size))
                self._db.executemany("INSERT OR REPLACE INTO credit VALUES (?, ?, ?)", rows)
                self._drop_oldest()
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def rewind(self, update: int) -> None:
        """Drop what was stored after an update; a negative one drops everything."""
        self._db.execute("BEGIN IMMEDIATE")
        self._drop_updates("number > ?", update)
        self._db.execute("COMMIT")

    def _drop_oldest(self) -> None:
        sizes = self._db.execute("SELECT number, size FROM updates ORDER BY number").fetchall()
        total = sum(size for _, size in sizes)
        last = -1
        for number, size in sizes:
            if total <= self._max_bytes:
                break
            total, last = total - size, number
        if last >= 0:
            self._drop_updates("number <= ?", last)

    def _drop_updates(self, condition: str, update: int) -> None:
        for table in ("credit", "updates"):
            self._db.execute(f"DELETE FROM {table} WHERE {condition}", (update,))
