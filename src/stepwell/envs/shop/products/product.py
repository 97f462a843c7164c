"""A product as plain data: what it is, what it is said to be, what can be chosen, what it costs.

Money is in cents, so that sums and comparisons are exact. An option's value may cost more than the price
on the shelf; the price of a purchase is the shelf price and the extras of what was chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepwell.core.errors import EncodingError

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # one for all: a catalogue has 50,000


@dataclass(frozen=True, slots=True)
class Option:
    """One choice: its name, its values, and what each adds to the price (cents)."""

    name: str
    values: tuple[str, ...]
    extras: tuple[int, ...] = ()

    def extra(self, value: str) -> int:
        """What a value adds to the price."""
        return self.extras[self.values.index(value)] if self.extras else 0


@dataclass(frozen=True, slots=True)
class Product:
    """One thing on the shelves: `kind` is what people call it, `category` its shelf, from wide to narrow."""

    id: str
    title: str
    kind: str
    category: tuple[str, ...]
    price: int
    attributes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    features: tuple[str, ...] = ()
    description: str = ""

    def compute_price(self, chosen: Mapping[str, str]) -> int:
        """What it costs with these values chosen (option name -> value)."""
        return self.price + sum(o.extra(chosen[o.name]) for o in self.options if o.name in chosen)

    def to_json(self) -> str:
        """As one line of text."""
        options = [[option.name, option.values, option.extras] for option in self.options]
        fields = [self.id, self.title, self.kind, self.category, self.price, self.attributes, options]
        return _ENCODER.encode([*fields, self.features, self.description])

    @classmethod
    def from_json(cls, text: str) -> Product:
        """The reverse of `to_json`."""
        try:
            name, title, kind, category, price, attributes, options, features, about = json.loads(text)
            read = tuple(Option(option, tuple(values), tuple(extras)) for option, values, extras in options)
            lists = tuple(category), tuple(attributes), tuple(features)
        except (ValueError, TypeError) as error:
            raise EncodingError(f"a product cannot be read: {error}") from error
        return cls(name, title, kind, lists[0], price, lists[1], read, lists[2], about)


def format_dollars(cents: int) -> str:
    """An amount for people; whole dollars are written without cents.

    >>> format_dollars(1999), format_dollars(1200)
    ('$19.99', '$12')
    """
    return f"${cents // 100}" if cents % 100 == 0 else f"${cents // 100}.{cents % 100:02d}"


def list_texts(product: Product) -> Iterable[str]:
    """Every text in which a product may say what it is."""
    return (product.title, *product.features, product.description)
