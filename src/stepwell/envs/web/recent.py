"""A table of a bounded size that forgets what was not asked for longest."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentTable(Generic[T]):
    """The table; many threads may use it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> T | None:
        """What is kept under a key."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: Hashable, value: T) -> T:
        """Keep a value; what another thread kept first wins."""
        with self._lock:
            if len(self._kept) >= self._size and key not in self._kept:
                self._kept.popitem(last=False)
            return self._kept.setdefault(key, value)
