"""Shopping goals: a kind of product, its attributes, the values to choose, and the maximum price.

A generated goal is derived from a product but does not name it: any matching product is correct. Equal goals
have equal texts (the wording follows from the goal), so no goal is in both splits. The goals of WebShop's
files are about one product, whose title gives its kind.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.core import JSON, EncodingError, InputError, hash_content
from stepwell.envs.shop.products import Product, Store
from stepwell.envs.shop.products.product import format_dollars

_WORDINGS = (
    "I am looking for {kind} ({attributes}){options}, for at most {limit}.",
    "Find me {kind}: {attributes}{options}. It must cost no more than {limit}.",
    "I need {attributes} {kind}{options}, price up to {limit}.",
    "Please buy {kind} for me, {attributes}{options}, and spend at most {limit}.",
)
_TINY_WORDING = "Buy {attributes} {kind}{options}, up to {limit}."
_PLAIN = re.compile(r"[a-z]{3,}")
_NO_NAMES = frozenset(("and", "for", "the", "with", "set", "pack", "size", "inch", "from", "your", "that"))


@dataclass(frozen=True, slots=True)
class ShopGoal:
    """A goal. `type_words` are the words that identify such a product by its title; `limit` is in cents."""

    instruction: str
    kind: str
    type_words: tuple[str, ...]
    category: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    limit: int

    @property
    def values(self) -> tuple[str, ...]:
        """The values to choose."""
        return tuple(value for _, value in self.options)

    def to_json(self) -> dict[str, JSON]:
        """The goal as plain data."""
        return {
            "instruction": self.instruction,
            "kind": self.kind,
            "type_words": list(self.type_words),
            "category": list(self.category),
            "attributes": list(self.attributes),
            "options": [list(option) for option in self.options],
            "limit": self.limit,
        }

    @classmethod
    def from_json(cls, value: Any) -> ShopGoal:
        """The reverse of `to_json`; invalid data is an `InputError`."""
        try:
            texts = [value["instruction"], value["kind"]]
            lists = [tuple(value[name]) for name in ("type_words", "category", "attributes")]
            options = tuple((name, wanted) for name, wanted in value["options"])
            limit = value["limit"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"a goal of shop lacks or misspells a field: {error!r}") from error
        said = [*texts, *(word for words in lists for word in words), *(part for o in options for part in o)]
        if not all(isinstance(text, str) for text in said) or not isinstance(limit, int):
            raise InputError("a goal of shop holds texts, and a limit in whole cents")
        return cls(texts[0], texts[1], lists[0], lists[1], lists[2], options, limit)


def draw_goal(product: Product, rng: random.Random, *, is_tiny: bool) -> ShopGoal:
    """A goal that this product satisfies."""
    most = 1 if is_tiny else 3
    attributes = rng.sample(product.attributes, rng.randint(1, min(most, len(product.attributes))))
    named = list(product.options)
    if not is_tiny:
        count = max(rng.randint(0, len(named)), rng.randint(0, len(named)))  # prefers larger numbers
        named = sorted(rng.sample(named, count), key=named.index)
    chosen = {option.name: rng.choice(option.values) for option in named}
    price = product.compute_price(chosen)
    dear = int(price * rng.uniform(1.0, 1.4))
    limit = -(-dear // 100) * 100
    return _word_goal(product, tuple(sorted(attributes)), chosen, limit, is_tiny=is_tiny)


def _word_goal(
    product: Product, attributes: tuple[str, ...], chosen: Mapping[str, str], limit: int, *, is_tiny: bool
) -> ShopGoal:
    options = tuple(chosen.items())
    goal_key = hash_content([product.kind, attributes, options, limit])
    wording = _TINY_WORDING if is_tiny else _WORDINGS[int(goal_key[:8], 16) % len(_WORDINGS)]
    joined = ", ".join(f"{name}: {value}" for name, value in options)
    instruction = wording.format(
        kind=product.kind,
        attributes=", ".join(attributes),
        options=f", {joined}" if joined else "",
        limit=format_dollars(limit),
    )
    type_words = tuple(dict.fromkeys(split_words(product.kind)))
    return ShopGoal(instruction, product.kind, type_words, product.category, attributes, options, limit)


def read_listed_goal(store: Store, number: int) -> ShopGoal | None:
    """The goal with this number among those supplied with the products; None if its product is missing."""
    try:
        row = json.loads(store.goal(number))
        name, told, attributes, values = (row[k] for k in ("product", "instruction", "attributes", "options"))
    except (ValueError, KeyError, TypeError) as error:
        raise EncodingError(f"goal {number} of {store.path.name} cannot be read: {error!r}") from error
    found = store.number_of(name)
    if found is None:
        return None
    product = store.product(found)
    limit = random.Random(f"{name} {told}").choice((110, 130, 150, 200)) * product.price // 100
    limit = -(-limit // 1000) * 1000
    instruction = f"{told}, and price lower than {format_dollars(limit)}."
    type_words = tuple(dict.fromkeys(w for w in _PLAIN.findall(product.title.lower()) if w not in _NO_NAMES))
    options = tuple(("", value) for value in values)
    return ShopGoal(
        instruction, product.kind, type_words, product.category, tuple(attributes), options, limit
    )


def split_words(text: str) -> tuple[str, ...]:
    """Split a text into its lower-case words.

    >>> split_words("X-Large, navy")
    ('x', 'large', 'navy')
    """
    return tuple(re.findall(r"[^\W_]+", text.casefold()))
