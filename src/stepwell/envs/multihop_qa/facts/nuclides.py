"""Nuclides: passages and questions about isotopes and elements, from the tables of package mendeleev.

    isotope -decay-> isotope -decay-> ...
            -product-> element

What an isotope becomes follows from its commonest way of decay, where that is one of `DECAYS` and makes up
at least half of all; the element of what it becomes is `product`. Nothing here is in the atlas: other
sources, other relations, an index of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from stepwell.envs.multihop_qa.facts.collection import Collection, keep_sound_questions
from stepwell.envs.multihop_qa.facts.composer import Bridge, Comparison, Composer, Family
from stepwell.envs.multihop_qa.facts.graph import FactGraph, Node
from stepwell.envs.multihop_qa.facts.packages import digest_file, find_package_file
from stepwell.envs.multihop_qa.facts.phrases import fill_phrase

DECAYS = {  # mode -> its name, change of the atomic number, change of the mass number
    "B-": ("beta minus decay", 1, 0),
    "B+": ("beta plus decay", -1, 0),
    "EC": ("electron capture", -1, 0),
    "A": ("alpha decay", -2, -4),
    "p": ("proton emission", -1, -1),
    "n": ("neutron emission", 0, -1),
    "2p": ("emission of two protons", -2, -2),
    "2n": ("emission of two neutrons", 0, -2),
}
MIN_INTENSITY = 50.0
UNITS = {
    "ysec": "yoctoseconds",
    "zsec": "zeptoseconds",
    "asec": "attoseconds",
    "psec": "picoseconds",
    "nsec": "nanoseconds",
    "usec": "microseconds",
    "msec": "milliseconds",
    "sec": "seconds",
    "minute": "minutes",
    "hour": "hours",
    "day": "days",
    "year": "years",
    "kyear": "thousand years",
    "Myear": "million years",
    "Gyear": "billion years",
}
ISOTOPE = (
    "{name} is an isotope of {element} first observed in {year}.",
    "The isotope {name} has been known since {year}; chemically it is {element}.",
)
LASTS = ("Its half-life is {half_life}.", "Half of it is gone after {half_life}.")
BECOMES = ("By {mode} it turns into {daughter}.", "It mostly undergoes {mode} and becomes {daughter}.")
ELEMENT = (
    "{name} is the chemical element number {number}, with the symbol {symbol}.",
    "The element {name} (symbol {symbol}) has {number} protons in its nucleus.",
)
FOUND = (
    "It was discovered by {discoverer} in {year}; the place given is {place}.",
    "Its discovery in {year} ({place}) is credited to {discoverer}.",
)
OF = {
    "decay": ("the isotope that {x} turns into", "the isotope that {x} decays to"),
    "product": ("the element that {x} turns into", "the element left by the decay of {x}"),
}
ASK = {
    "half_life": ("What is the half-life of {x}?", "After what time is half of {x} gone?"),
    "first_seen": ("In which year was {x} first observed?", "Since what year has {x} been known?"),
    "becomes": ("What does {x} decay to?", "Into which isotope does {x} turn?"),
    "discoverer": ("Who discovered {x}?", "To whom is the discovery of {x} credited?"),
    "found_in": ("In which year was {x} discovered?", "What year is given for the discovery of {x}?"),
    "place": ("Where was {x} discovered?", "What place is given for the discovery of {x}?"),
    "symbol": ("What is the chemical symbol of {x}?",),
}
COMPARE = {
    "product.number": ("the heavier of the elements that {x} and {y} turn into",),
    "decay.protons": ("whichever of the isotopes that {x} and {y} decay to has more protons",),
}
FAMILIES: tuple[Family, ...] = (
    *(Bridge("isotope", ("product",), value, 300) for value in ("discoverer", "found_in", "place")),
    Bridge("isotope", ("product",), "symbol", 200),
    Bridge("isotope", ("decay",), "half_life", 500),
    Bridge("isotope", ("decay",), "first_seen", 300),
    Bridge("isotope", ("decay",), "becomes", 500),
    Bridge("isotope", ("decay", "decay"), "half_life", 500),
    Bridge("isotope", ("decay", "decay"), "becomes", 300),
    Bridge("isotope", ("decay", "product"), "discoverer", 300),
    Bridge("isotope", ("decay", "decay", "decay"), "half_life", 300),
    Bridge("isotope", ("decay", "decay", "product"), "found_in", 200),
    Comparison("isotope", "product", "number", "discoverer", 300),
    Comparison("isotope", "decay", "protons", "half_life", 300),
)
MAX_PER_ANSWER = 40
ELEMENTS = "SELECT atomic_number, name, symbol, discoverers, discovery_year, discovery_location FROM elements"
ISOTOPES = (
    "SELECT id, atomic_number, mass_number, half_life, half_life_unit, discovery_year FROM isotopes "
    "ORDER BY atomic_number, mass_number, id"
)
MODES = "SELECT isotope_id, mode, intensity FROM isotopedecaymodes WHERE intensity IS NOT NULL ORDER BY id"
Row = tuple[Any, ...]


def digest_inputs() -> list[str]:
    """What the collection depends on."""
    return [digest_file(find_package_file("mendeleev", "elements.db"))]


def build_nuclides() -> Collection:
    """The whole collection, from the package."""
    with closing(
        sqlite3.connect(f"file:{find_package_file('mendeleev', 'elements.db')}?mode=ro", uri=True)
    ) as tables:
        elements = {row[0]: row for row in tables.execute(ELEMENTS)}
        isotopes = {(row[1], row[2]): row for row in reversed(tables.execute(ISOTOPES).fetchall())}
        modes = _find_commonest_modes(tables.execute(MODES).fetchall())
    known = {place: row for place, row in sorted(isotopes.items()) if row[5] is not None}
    graph = FactGraph(
        [*_make_isotopes(known, elements, modes), *(_make_element(row) for row in elements.values())]
    )
    composer = Composer(graph, ASK, OF, COMPARE, {})
    return keep_sound_questions(
        "nuclides", graph.documents(), composer.compose_questions(FAMILIES, MAX_PER_ANSWER)
    )


def _find_commonest_modes(rows: list[Row]) -> dict[int, str]:
    """The commonest way of decay of every isotope that has a clear one."""
    best: dict[int, tuple[float, str]] = {}
    for isotope, mode, intensity in rows:
        if intensity > best.get(isotope, (0.0, ""))[0]:
            best[isotope] = (intensity, mode)
    return {
        isotope: mode
        for isotope, (intensity, mode) in best.items()
        if intensity >= MIN_INTENSITY and mode in DECAYS
    }


def _make_isotopes(
    known: dict[tuple[int, int], Row], elements: dict[int, Row], modes: dict[int, str]
) -> Iterator[Node]:
    for (protons, mass), (row_id, _, _, half_life, unit, year) in known.items():
        element = elements[protons][1]
        name = f"{element}-{mass}"
        values, links = {"first_seen": str(year)}, {}
        parts = [fill_phrase(ISOTOPE, name, name=name, element=element, year=year)]
        if half_life is not None and unit in UNITS:
            values["half_life"] = f"{half_life:g} {UNITS[unit]}"
            parts.append(fill_phrase(LASTS, name, half_life=values["half_life"]))
        if row_id in modes:
            mode, more_protons, more_mass = DECAYS[modes[row_id]]
            place = (protons + more_protons, mass + more_mass)
            if place in known:
                values["becomes"] = f"{elements[place[0]][1]}-{place[1]}"
                links["decay"] = _write_id(place)
                if place[0] != protons:
                    links["product"] = f"element:{place[0]}"
                parts.append(fill_phrase(BECOMES, name, mode=mode, daughter=values["becomes"]))
        numbers = {"protons": float(protons)}
        yield Node(_write_id((protons, mass)), "isotope", name, name, " ".join(parts), values, numbers, links)


def _make_element(row: Row) -> Node:
    number, name, symbol, discoverer, year, place = row
    text = fill_phrase(ELEMENT, name, name=name, number=number, symbol=symbol)
    values = {"symbol": symbol}
    if discoverer and year and place:
        values |= {"discoverer": discoverer, "found_in": str(year), "place": place}
        text += " " + fill_phrase(FOUND, name, discoverer=discoverer, year=year, place=place)
    return Node(
        f"element:{number}", "element", name, f"{name} (element)", text, values, {"number": float(number)}
    )


def _write_id(place: tuple[int, int]) -> str:
    return f"isotope:{place[0]}-{place[1]}"
