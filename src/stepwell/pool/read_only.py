"""SQLite pools that may not be written: another user's, on a read-only disk, or made so on purpose.

A pool in WAL mode is its file and, while it is open somewhere or after a kill, a log (`-wal`) of newer
commits with an index of it in shared memory (`-shm`). SQLite would make the missing ones, which cannot
be done here. So it depends on what there is:

| there is | read |
|---|---|
| the file alone | as an image that does not change: nobody had it open when this pool was opened |
| file, log and index | as any reader does, also while others write |
| file and log | with an index of this process alone, so that what a killed writer committed is seen |
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import QueuePool, create_engine, event


def is_read_only(path: Path) -> bool:
    """Whether a pool is there that this user may not write. SQLite makes files beside it, so both count."""
    # Not by opening the file: closing it would drop SQLite's locks of this process.
    return path.is_file() and not (_may_write(path) and _may_write(path.parent))


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def make_reading_engine(path: Path, timeout_s: float) -> Any:
    """An engine whose connections read and never write."""

    def connect() -> sqlite3.Connection:
        log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
        has_log = log.exists() and log.stat().st_size > 0
        how = "mode=ro" if index.exists() else "mode=ro&vfs=unix-none" if has_log else "immutable=1"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{how}", uri=True, timeout=timeout_s, check_same_thread=False
        )
        connection.isolation_level = None
        if has_log and not index.exists():
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # keeps the index in this process
        connection.execute("PRAGMA query_only = ON")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=8, max_overflow=-1)

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine
