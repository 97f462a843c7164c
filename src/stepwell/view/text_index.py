"""The texts of a pool's trajectories, read once and kept in memory: a search need not read them again.

A search reads what it needs, newest first. The first one also starts a thread that reads the rest: half of
the time it rests, so that pages still come quickly. In memory a text is folded to lower case.

Invariants
* A text is kept only if its trajectory is finished: it never changes any more.
* At most `max_chars` characters are kept; what does not fit is read at every search.
* After `close` nothing reads the pool any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from stepwell.core.errors import StepwellError
from stepwell.pool import Pool
from stepwell.pool.texts import list_seqs, read_texts

MAX_CHARS = 50_000_000
_READ_TOGETHER = 100
_log = logging.getLogger(__name__)


class TextIndex:
    """The texts of one pool by `seq`."""

    def __init__(self, pool: Pool, max_chars: int = MAX_CHARS) -> None:
        self._pool, self._max_chars = pool, max_chars
        self._kept: dict[int, tuple[str, str]] = {}
        self._num_chars = 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def get_texts(self, seqs: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Ids and texts of trajectories, from memory where they are known; without those that are gone."""
        found = {seq: self._kept[seq] for seq in seqs if seq in self._kept}
        missing = [seq for seq in seqs if seq not in found]
        for one in read_texts(self._pool, missing) if missing else ():
            entry = one.id, one.text.casefold()
            found[one.seq] = entry
            with self._lock:
                if not one.is_open and self._num_chars + len(entry[1]) <= self._max_chars:
                    self._num_chars += len(entry[1]) if one.seq not in self._kept else 0
                    self._kept[one.seq] = entry
        return found

    def start_reading(self) -> None:
        """Read all texts in a thread, once; later searches read what is new since."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_all, name="stepwell-view-texts", daemon=True)
            self._thread.start()

    def wait_until_read(self, timeout_s: float) -> bool:
        """Whether the thread has read everything within this time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is not None and not self._thread.is_alive()

    def close(self) -> None:
        """Let the thread end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _read_all(self) -> None:
        try:
            seqs = list_seqs(self._pool)
            for start in range(0, len(seqs), _READ_TOGETHER):
                began = time.monotonic()
                self.get_texts(seqs[start : start + _READ_TOGETHER])
                is_full = self._num_chars > 0.99 * self._max_chars
                if is_full or self._stop.wait(time.monotonic() - began):
                    return
        except (StepwellError, OSError) as error:  # a search meets the same error and shows it
            _log.warning("texts of trajectories could not be read ahead: %s", error)
