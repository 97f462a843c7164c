"""The score of a purchase, from 0 to 1, as in WebShop.

    score = type · (attributes had + values chosen + price kept) / (attributes + values wanted + 1)

`type` says whether the product is of the right kind. Let s be the share of the goal's type words that are in
the title:

    1    it has the same kind, or shares two categories with it, or s > 0.2
    0.5  none of these, and s ≥ 0.1
    0.1  0 < s < 0.1
    0    s = 0, whatever its categories

A product has an attribute if it lists it, or if one of its texts contains it word for word. A value counts as
chosen if its words are those of a chosen value. The published code compares letters loosely here, and takes
XX-large for X-large. Success is a score of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

from stepwell.envs.shop.goal import ShopGoal, split_words
from stepwell.envs.shop.products import Product
from stepwell.envs.shop.products.product import list_texts

_LIKE, _FAINT = 0.2, 0.1
_SHARED_SHELVES = 2


@dataclass(frozen=True, slots=True)
class PurchaseScore:
    """A purchase against its goal: the parts, and the whole."""

    total: float
    type: float
    num_attributes: int
    num_options: int
    is_within_limit: bool

    @property
    def is_success(self) -> bool:
        """Whether the purchase meets the whole goal."""
        return self.total == 1.0

    def to_json(self) -> dict[str, float]:
        """As plain data."""
        return asdict(self)


def score_purchase(goal: ShopGoal, product: Product, chosen: Mapping[str, str]) -> PurchaseScore:
    """The score of buying `product` with these values (option name -> value)."""
    kind = score_type(goal, product)
    num_attributes = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    taken = {split_words(value) for value in chosen.values()}
    num_options = sum(split_words(value) in taken for value in goal.values)
    within = product.compute_price(chosen) <= goal.limit
    share = (num_attributes + num_options + within) / (len(goal.attributes) + len(goal.options) + 1)
    return PurchaseScore(kind * share, kind, num_attributes, num_options, within)


def score_type(goal: ShopGoal, product: Product) -> float:
    """How well the kind of the product fits, from 0 to 1."""
    title = set(split_words(product.title))
    share = sum(word in title for word in goal.type_words) / max(1, len(goal.type_words))
    if share == 0:
        return 0.0
    if share < _FAINT:
        return 0.1
    shelves = len(set(goal.category) & set(product.category))
    is_same = product.kind == goal.kind or shelves >= _SHARED_SHELVES or share > _LIKE
    return 1.0 if is_same else 0.5


@lru_cache(maxsize=50_000)
def has_attribute(product: Product, attribute: str) -> bool:
    """Whether the product lists the attribute, or one of its texts contains it."""
    wanted = split_words(attribute)
    if any(split_words(own) == wanted for own in product.attributes):
        return True
    return any(_has_phrase(split_words(text), wanted) for text in list_texts(product))


def _has_phrase(text: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    count = len(phrase)
    return bool(phrase) and any(text[i : i + count] == phrase for i in range(len(text) - count + 1))
