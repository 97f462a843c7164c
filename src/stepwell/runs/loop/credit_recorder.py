"""Keeps the credit of every update of a run in `credit.db`, as far as settings allow.

Credit is for people who look at a run. So a disk that cannot take it ends the recording, with one note, and
never the run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from stepwell.pool.credit_records import CreditRecord
from stepwell.pool.credit_store import CreditStore


class CreditRecorder:
    """Writes to the folder of one run. `note` reports a failure."""

    def __init__(self, folder: Path, max_mb: float, note: Callable[[str], None]) -> None:
        self._folder, self._max_mb, self._note = folder, max_mb, note
        self._store: CreditStore | None = None
        self._has_failed = False

    def rewind(self, update: int) -> None:
        """Drop what was stored after this update: it will be computed again."""
        self._run(lambda store: store.rewind(update))

    def keep(self, update: int, records: list[CreditRecord]) -> None:
        """Store the credit of an update."""
        self._run(lambda store: store.write(update, records))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _run(self, call: Callable[[CreditStore], None]) -> None:
        if self._has_failed or self._max_mb <= 0:
            return
        try:
            if self._store is None:
                self._store = CreditStore(self._folder, self._max_mb)
            call(self._store)
        except (sqlite3.Error, OSError) as error:
            self._has_failed = True
            self._note(f"credit is no longer stored: credit.db could not be written ({error})")
