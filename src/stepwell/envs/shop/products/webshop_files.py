"""WebShop's own product files, read as they are published.

    items_shuffle*.json    a list of products: asin, name, query, product_category, pricing,
                           full_description, small_description, customization_options, …
    items_ins*.json        asin -> {attributes, instruction, instruction_attributes}
    items_human_ins*.json  asin -> [{instruction, instruction_attributes, instruction_options}, …]

The list may be gigabytes long, so it is read product by product. Products without a usable asin, or seen
before, are left out. A range of prices counts as its lower end, and a product without a price costs $100;
values on sale are written in small letters, with ` | ` for a slash. Goals people wrote are taken where
there are any, else those of the second file. A goal is JSON: product id, instruction, attributes, options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.core.errors import ConfigError, EncodingError
from stepwell.envs.shop.products.product import Option, Product

VERSION = 1
NO_PRICE = 100_00
_CHUNK = 1 << 20
_MAX_ASIN = 10
_AMOUNT = re.compile(r"\$\s*([\d,]*\.?\d+)")


@dataclass(frozen=True, slots=True)
class WebShopFiles:
    """Where the files are; those about instructions may be missing."""

    products: Path
    instructions: Path | None
    human: Path | None

    @property
    def all(self) -> tuple[Path, ...]:
        """The files that exist."""
        return tuple(path for path in (self.products, self.instructions, self.human) if path is not None)


def find_files(folder: Path) -> WebShopFiles:
    """The files of a folder, by the beginnings of their names."""
    if not folder.is_dir():
        raise ConfigError(f"webshop_files: {folder} is not a folder")
    human = sorted(folder.glob("items_human_ins*.json"))
    others = sorted(folder.glob("items_ins*.json"))
    products = sorted(folder.glob("items_shuffle*.json"))
    if not products:
        raise ConfigError(f"webshop_files: {folder} holds no items_shuffle*.json")
    return WebShopFiles(products[-1], others[-1] if others else None, human[-1] if human else None)


def read_products(files: WebShopFiles) -> Iterator[Product]:
    """The products that can be sold."""
    told = _read_table(files.instructions)
    seen: set[str] = set()
    for row in read_list(files.products):
        asin = str(row.get("asin") or "").strip()
        if not asin or asin == "nan" or len(asin) > _MAX_ASIN or asin.upper() in seen or not row.get("name"):
            continue
        seen.add(asin.upper())
        about = told.get(asin)
        yield _read_product(asin, row, about if isinstance(about, dict) else {})


def read_goals(files: WebShopFiles) -> Iterator[str]:
    """The goals, as JSON."""
    for asin, rows in _read_table(files.human).items():
        for row in rows:
            yield _write_goal(asin, row, row.get("instruction_options") or {})
    if files.human is None:
        for asin, row in _read_table(files.instructions).items():
            if row.get("instruction") and row.get("instruction_attributes"):
                yield _write_goal(asin, row, {})


def read_list(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list, one after the other, without holding the list."""
    decoder = json.JSONDecoder()
    with open(path, encoding="utf-8") as file:
        text = file.read(_CHUNK).lstrip()
        if not text.startswith("["):
            raise EncodingError(f"{path} is no JSON list")
        text = text[1:]
        while True:
            text = text.lstrip(" \t\r\n,")
            if text.startswith("]"):
                return
            try:
                row, end = decoder.raw_decode(text)
            except ValueError as error:
                more = file.read(max(_CHUNK, len(text)))
                if not more:
                    raise EncodingError(f"{path} ends early, or is damaged: {error}") from error
                text += more
                continue
            if not isinstance(row, dict):
                raise EncodingError(f"{path} must list objects, found a {type(row).__name__}")
            yield row
            text = text[end:]


def _read_table(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EncodingError(f"{path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise EncodingError(f"{path} must hold one JSON object, by asin")
    return table


def _read_product(asin: str, row: dict[str, Any], about: dict[str, Any]) -> Product:
    points = row.get("small_description") or []
    options = row.get("customization_options") or {}
    return Product(
        asin,
        str(row["name"]).strip(),
        str(row.get("query") or "").strip().lower(),
        tuple(part.strip() for part in str(row.get("product_category") or "").split("›") if part.strip()),
        read_price(row.get("pricing")),
        tuple(str(attribute).strip().lower() for attribute in about.get("attributes") or ()),
        tuple(_read_option(name, values) for name, values in options.items() if values),
        tuple(str(point).strip() for point in (points if isinstance(points, list) else [points])),
        str(row.get("full_description") or "").strip(),
    )


def read_price(text: Any) -> int:
    """The lowest price of a text, in cents.

    >>> read_price("$19.99$29.99"), read_price("$1,299.00"), read_price("")
    (1999, 129900, 10000)
    """
    found = [round(float(amount.replace(",", "")) * 100) for amount in _AMOUNT.findall(str(text or ""))]
    return min(found, default=NO_PRICE)


def _read_option(name: str, values: list[Any]) -> Option:
    told = [str(value.get("value") if isinstance(value, dict) else value) for value in values]
    plain = dict.fromkeys(normalise_value(value) for value in told)
    return Option(name.strip().lower(), tuple(value for value in plain if value))


def normalise_value(value: str) -> str:
    """A value as it is shown and clicked."""
    return value.strip().replace("/", " | ").lower()


def _write_goal(asin: str, row: dict[str, Any], options: Any) -> str:
    values = options.values() if isinstance(options, dict) else options
    wanted = [normalise_value(str(value)) for value in values]
    attributes = [str(attribute).strip().lower() for attribute in row.get("instruction_attributes") or ()]
    told = str(row.get("instruction") or "").strip().rstrip(".")
    return json.dumps({"product": asin, "instruction": told, "attributes": attributes, "options": wanted})
