"""The atlas: passages and questions about airports, cities, countries, currencies and languages.

    airport -city-> city -country-> country -currency-> currency
                                            -language-> language
                                            -capital->  city

The wording of passages and questions is ours; the facts come from tables (`atlas_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.envs.multihop_qa.facts.atlas_tables import (
    Row,
    Tables,
    find_files,
    find_script,
    load_english,
    read_tables,
)
from stepwell.envs.multihop_qa.facts.collection import Collection, keep_sound_questions
from stepwell.envs.multihop_qa.facts.composer import Bridge, Comparison, Composer, Family, Intersection
from stepwell.envs.multihop_qa.facts.graph import FactGraph, Node, make_key
from stepwell.envs.multihop_qa.facts.packages import digest_file
from stepwell.envs.multihop_qa.facts.phrases import fill_phrase, join_names

CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
AIRPORT = (
    "{name} serves {city}. It lies {elevation} feet above the sea, and its ICAO code is {icao}.",
    "The airfield {name} (ICAO {icao}) is that of {city}; its elevation is {elevation} feet.",
    "Those who fly to {city} may land at {name}, {elevation} feet high, known to pilots as {icao}.",
)
CITY = (
    "{name} is a city in {country}. It has a population of {population}.",
    "With {population} inhabitants, {name} is one of the cities of {country}.",
    "The city of {name} belongs to {country} and counts {population} people.",
)
COUNTRY = (
    "{name} is a country in {continent}. Its capital is {capital}. It covers {area} square kilometres "
    "and has {people} inhabitants.",
    "The country {name}, in {continent}, is governed from its capital {capital}. Its area is {area} square "
    "kilometres and its population {people}.",
)
COUNTRY_MORE = (
    "People pay with the {currency}. The first-listed language is {language}. Its internet domain is {tld} "
    "and its telephone code {phone}.",
    "Its currency is the {currency}, and of its languages {language} is listed first. The telephone code is "
    "{phone}, the internet domain {tld}.",
)
BORDERS = ("It borders {countries}.", "Its neighbours by land are {countries}.")
CURRENCY = (
    "The {name} is a currency. Its ISO code is {code}.",
    "{name}: a currency, written {code} in the ISO list.",
)
LANGUAGE = (
    "{name} is a language written mostly in the {script} script. Its ISO 639 code is {code}.",
    "The language {name} has the ISO 639 code {code}; its usual script is {script}.",
)
OF = {
    "city": ("the city that {x} serves", "the city served by {x}", "the city of the airfield {x}"),
    "country": ("the country of {x}", "the country that {x} belongs to", "the country where {x} is found"),
    "currency": ("the currency of {x}", "the money used in {x}"),
    "language": ("the first-listed language of {x}", "the language listed first for {x}"),
    "capital": ("the capital of {x}", "the capital city of {x}"),
}
ASK = {
    "country": ("In which country is {x}?", "Name the country of {x}.", "{x} belongs to which country?"),
    "people": ("How many people live in {x}?", "What is the population of {x}?"),
    "capital": (
        "What is the capital of {x}?",
        "Which city is the capital of {x}?",
        "Name the capital of {x}.",
    ),
    "currency": ("What is the currency of {x}?", "With which money do people pay in {x}?"),
    "language": ("Which language is listed first for {x}?", "What is the first-listed language of {x}?"),
    "tld": ("What is the internet domain of {x}?", "Which internet domain belongs to {x}?"),
    "phone": ("What is the telephone code of {x}?", "Which telephone code reaches {x}?"),
    "area": ("How many square kilometres does {x} cover?", "What is the area of {x} in square kilometres?"),
    "code": ("What is the ISO code of {x}?", "Which ISO code stands for {x}?"),
    "script": ("In which script is {x} mostly written?", "What is the usual script of {x}?"),
    "language_code": ("What is the ISO 639 code of {x}?", "Which ISO 639 code stands for {x}?"),
}
COMPARE = {
    "country.area": (
        "the larger, by area, of the countries of {x} and {y}",
        "whichever of the two countries that {x} and {y} belong to has the larger area",
    ),
    "country.people": ("the more populous of the countries of {x} and {y}",),
    "city.people": (
        "the more populous of the cities that {x} and {y} serve",
        "whichever of the cities served by {x} and {y} has more inhabitants",
    ),
}
BOTH = {
    "country.borders": (
        "Which country borders both the country of {x} and the country of {y}?",
        "What country is a neighbour of the country of {x} and also of that of {y}?",
    )
}
FAMILIES: tuple[Family, ...] = (
    *(
        Bridge("city", ("country",), value, 500)
        for value in ("capital", "currency", "language", "tld", "phone")
    ),
    Bridge("city", ("country",), "area", 400),
    Bridge("country", ("currency",), "code", 150),
    Bridge("country", ("language",), "language_code", 150),
    Bridge("country", ("capital",), "people", 150),
    Bridge("airport", ("city",), "country", 700),
    Bridge("airport", ("city",), "people", 700),
    *(
        Bridge("airport", ("city", "country"), value, 400)
        for value in ("capital", "currency", "tld", "phone")
    ),
    Bridge("city", ("country", "currency"), "code", 700),
    Bridge("city", ("country", "language"), "language_code", 600),
    Bridge("city", ("country", "language"), "script", 300),
    Bridge("city", ("country", "capital"), "people", 600),
    Bridge("airport", ("city", "country", "currency"), "code", 300),
    Bridge("airport", ("city", "country", "language"), "language_code", 300),
    Bridge("airport", ("city", "country", "capital"), "people", 300),
    Comparison("city", "country", "area", "capital", 500),
    Comparison("city", "country", "area", "tld", 300),
    Comparison("city", "country", "people", "currency", 300),
    Comparison("airport", "city", "people", "country", 500),
    Intersection("city", "country", "borders", 1_000),
)
MAX_PER_ANSWER = 90


def digest_inputs() -> list[str]:
    """Inputs of the collection."""
    load_english()  # explains how to install babel if it is missing
    from babel import __version__ as babel_version

    return [*(digest_file(path) for path in find_files().values()), babel_version]


def build_atlas() -> Collection:
    """Build the whole collection from the packages."""
    graph = FactGraph(_make_nodes(read_tables()))
    composer = Composer(graph, ASK, OF, COMPARE, BOTH)
    return keep_sound_questions(
        "atlas", graph.documents(), composer.compose_questions(FAMILIES, MAX_PER_ANSWER)
    )


def _make_nodes(found: Tables) -> Iterator[Node]:
    capital_of = _find_capitals(found)
    for icao, row in found.airports.items():
        yield _make_airport(icao, row, found)
    for id, row in found.cities.items():
        yield _make_city(id, row, found, is_capital=id in capital_of.values())
    for code, row in found.countries.items():
        yield _make_country(code, row, found, capital_of)
    for code in sorted(
        {row["currencycode"] for row in found.countries.values()} & set(load_english().currencies)
    ):
        name = load_english().currencies[code]
        text = fill_phrase(CURRENCY, code, name=name, code=code)
        yield Node(f"currency:{code}", "currency", name, f"{name} (currency)", text, {"code": code})
    for code in sorted({_find_language(row) for row in found.countries.values()} - {""}):
        name, script = load_english().languages[code], find_script(code)
        text = fill_phrase(LANGUAGE, code, name=name, code=code, script=script)
        values = {"script": str(script), "language_code": code}
        yield Node(f"language:{code}", "language", name, f"{name} (language)", text, values)


def _make_airport(icao: str, row: Row, found: Tables) -> Node:
    city = found.city_of[icao]
    text = fill_phrase(
        AIRPORT,
        icao,
        name=row["name"],
        city=found.cities[city]["name"],
        elevation=round(float(row["elevation"])),
        icao=icao,
    )
    return Node(f"airport:{icao}", "airport", row["name"], row["name"], text, links={"city": f"city:{city}"})


def _make_city(id: str, row: Row, found: Tables, is_capital: bool) -> Node:
    country = found.countries[row["countrycode"]]["name"]
    people = f"{row['population']:,}"
    text = fill_phrase(CITY, id, name=row["name"], country=country, population=people)
    return Node(
        f"city:{id}",
        "city",
        row["name"],
        row["name"],
        text,
        {"country": country, "people": people},
        {"people": row["population"]},
        {"country": f"country:{row['countrycode']}"},
        may_start=not is_capital,  # the country's passage names it too, so one search would do for two
    )


def _make_country(code: str, row: Row, found: Tables, capital_of: dict[str, str]) -> Node:
    language, money = _find_language(row), load_english().currencies.get(row["currencycode"])
    values = {
        "capital": row["capital"],
        "currency": money or row["currencyname"],
        "language": load_english().languages[language] if language else "",
        "tld": row["tld"],
        "phone": row["phone"],
        "area": f"{row['areakm2']:,}",
        "people": f"{row['population']:,}",
    }
    shown = {name: value or "not stated" for name, value in values.items()}
    borders = [iso for iso in row["neighbours"].split(",") if iso in found.countries]
    links = {"capital": f"city:{capital_of[code]}"} if code in capital_of else {}
    if money:
        links["currency"] = f"currency:{row['currencycode']}"
    if language:
        links["language"] = f"language:{language}"
    text = " ".join(
        [
            fill_phrase(COUNTRY, code, name=row["name"], continent=CONTINENTS[row["continentcode"]], **shown),
            fill_phrase(COUNTRY_MORE, code, **shown),
            *([_write_borders(code, borders, found)] if borders else []),
        ]
    )
    return Node(
        f"country:{code}",
        "country",
        row["name"],
        f"{row['name']} (country)",
        text,
        {name: value for name, value in values.items() if _is_single(name, value)},
        {"area": row["areakm2"], "people": row["population"]},
        links,
        {"borders": tuple(f"country:{iso}" for iso in borders)},
    )


def _is_single(name: str, value: str) -> bool:
    """Whether a value can be asked for; some countries have two telephone codes, or none."""
    return bool(value) and not (name in ("phone", "tld") and (" " in value or "," in value))


def _write_borders(code: str, borders: list[str], found: Tables) -> str:
    return fill_phrase(BORDERS, code, countries=join_names([found.countries[iso]["name"] for iso in borders]))


def _find_capitals(found: Tables) -> dict[str, str]:
    """Country code -> id of its capital, if that is one of the cities."""
    by_name = {(row["countrycode"], make_key(row["name"])): id for id, row in found.cities.items()}
    pairs = {code: by_name.get((code, make_key(row["capital"]))) for code, row in found.countries.items()}
    return {code: id for code, id in pairs.items() if id is not None}


def _find_language(row: Row) -> str:
    """Code of the first-listed language if CLDR knows its name and script; otherwise empty."""
    code: str = row["languages"].split(",")[0].split("-")[0]
    return code if code in load_english().languages and find_script(code) else ""
