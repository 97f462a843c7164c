"""SQLite pools without write permission: another user's, on a read-only disk, or protected on purpose.

A pool in WAL mode is one file. While it is open somewhere, or after a kill, there is also a log
(`-wal`) of newer commits with an index in shared memory (`-shm`). SQLite would create the missing
ones, which is impossible here. So the files that exist decide:

| files | how they are read |
|---|---|
| database only | as immutable: nobody had it open when this pool was opened |
| database, log and index | like any reader, also while others write |
| database and log | with an index private to this process, to see what a killed writer committed |
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import QueuePool, create_engine, event


def is_read_only(path: Path) -> bool:
    """Whether a pool exists without write permission for its file or folder (SQLite adds files there)."""
    # Not by opening the file: closing it would drop this process's SQLite locks.
    return path.is_file() and not (_may_write(path) and _may_write(path.parent))


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def make_read_only_engine(path: Path, timeout_s: float) -> Any:
    """An engine with read-only connections."""

    def open_connection() -> sqlite3.Connection:
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

    engine = create_engine(
        "sqlite://", creator=open_connection, poolclass=QueuePool, pool_size=8, max_overflow=-1
    )

    @event.listens_for(engine, "begin")
    def _begin_transaction(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine
