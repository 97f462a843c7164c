"""Ways on the map: the shortest one by length, and how long it takes."""

from __future__ import annotations

import heapq
import sqlite3

METERS_PER_MINUTE = {"walk": 80, "bike": 250, "car": 600}
Roads = dict[int, list[tuple[int, int]]]


def read_roads(db: sqlite3.Connection) -> Roads:
    """Neighbours of every place with the length of the road."""
    roads: Roads = {}
    for a, b, length in db.execute("SELECT a, b, length FROM roads ORDER BY a, b"):
        roads.setdefault(a, []).append((b, length))
    return roads


def search_roads(roads: Roads, start: int, end: int) -> tuple[int, list[int]]:
    """Length and places of the shortest way; of equal ways, the one with the smaller numbers."""
    queue: list[tuple[int, list[int]]] = [(0, [start])]
    done: set[int] = set()
    while queue:
        length, route = heapq.heappop(queue)
        if route[-1] == end:
            return length, route
        if route[-1] in done:
            continue
        done.add(route[-1])
        for place, more in roads.get(route[-1], ()):
            if place not in done:
                heapq.heappush(queue, (length + more, [*route, place]))
    raise AssertionError(f"the seeded roads do not join {start} and {end}")


def count_minutes(length: int, mode: str) -> int:
    """Minutes for a way, rounded up."""
    return -(-length // METERS_PER_MINUTE[mode])
