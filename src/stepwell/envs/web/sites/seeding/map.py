"""The map: places on a plane, roads between them, saved places, ratings, notes.

Places of a city lie near each other. Every place has roads to its nearest ones, and every city to the next,
so that there is a way from everywhere to everywhere. Lengths are in metres, whole tens.
"""

from __future__ import annotations

import random
import sqlite3

import numpy as np

from stepwell.envs.web.sites.seeding.words import SiteWords, shorten_name

SCHEMA = """
CREATE TABLE places (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, city TEXT, street TEXT, x INTEGER,
                     y INTEGER, phone TEXT, opens INTEGER, closes INTEGER);
CREATE TABLE roads (a INTEGER, b INTEGER, length INTEGER, PRIMARY KEY (a, b));
CREATE TABLE saved_places (user TEXT, place INTEGER, list TEXT, PRIMARY KEY (user, place));
CREATE TABLE ratings (id INTEGER PRIMARY KEY, place INTEGER, user TEXT, stars INTEGER, text TEXT);
CREATE TABLE reports (id INTEGER PRIMARY KEY, place INTEGER, user TEXT, text TEXT);
CREATE TABLE travel (user TEXT PRIMARY KEY, mode TEXT, unit TEXT);
CREATE INDEX ratings_place ON ratings (place);
"""
ROADS_PER_PLACE, CITY_GAP = 3, 4000


def seed_map(db: sqlite3.Connection, rng: random.Random, words: SiteWords) -> None:
    """Fill the tables."""
    accounts, cities = [shorten_name(name) for name in words.people], words.list("cities")
    seen: set[str] = set()
    spots: list[tuple[int, int]] = []
    for number in range(1, words.count("places") + 1):
        city = (number - 1) % len(cities)
        kind = rng.choice(words.list("kinds"))
        name = words.draw_unique(rng, "place_names", seen, kind=kind)
        spots.append((city * CITY_GAP + rng.randint(0, 200) * 10, rng.randint(0, 200) * 10))
        street = f"{rng.randint(1, 99)} {rng.choice(words.list('streets'))}"
        phone = str(rng.randint(100, 999)) if words.size == "tiny" else f"555-{rng.randint(1000, 9999)}"
        row = (
            number,
            name,
            kind,
            cities[city],
            street,
            *spots[-1],
            phone,
            rng.randint(6, 10),
            rng.randint(16, 23),
        )
        db.execute("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        for user in rng.sample(accounts[1:], rng.randint(0, 3)):
            rated = (number, user, rng.randint(1, 5), words.draw(rng, "sentences"))
            db.execute("INSERT INTO ratings (place, user, stars, text) VALUES (?, ?, ?, ?)", rated)
    _seed_roads(db, spots, len(cities))
    for number in rng.sample(range(1, len(spots) + 1), 3):
        db.execute("INSERT INTO saved_places VALUES (?, ?, 'liked')", (accounts[0], number))
    db.execute("INSERT INTO travel VALUES (?, 'walk', 'meters')", (accounts[0],))


def _seed_roads(db: sqlite3.Connection, spots: list[tuple[int, int]], num_cities: int) -> None:
    """Every place is joined to the nearest ones; of equal distances, the first places count as nearer."""
    places = np.array(spots)
    apart = np.abs(places[:, None] - places[None]).sum(axis=2) // 10 * 10
    lengths = np.maximum(10, apart)
    others = lengths.copy()
    np.fill_diagonal(others, np.iinfo(others.dtype).max)
    nearest = np.argsort(others, axis=1, kind="stable")[:, :ROADS_PER_PLACE]
    pairs = {(n, n + 1) for n in range(num_cities - 1)}
    pairs |= {(n, n + num_cities) for n in range(len(spots) - num_cities)}
    for a, row in enumerate(nearest.tolist()):
        pairs |= {(min(a, b), max(a, b)) for b in row}
    for a, b in sorted(pairs):
        length = int(lengths[a, b])
        db.executemany("INSERT INTO roads VALUES (?, ?, ?)", [(a + 1, b + 1, length), (b + 1, a + 1, length)])
