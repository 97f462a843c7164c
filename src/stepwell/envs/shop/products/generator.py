"""Products made up from a vocabulary: the same for the same seed, on every machine.

A product's texts speak of its own attributes and of no others, so that reading them is a fair way to find
out. Its title names some of them; the others are found on its other pages. What a title holds, which
values are on sale and what each costs follows the kind of thing: shelf prices lie between the kind's
bounds, evenly on a logarithmic scale, as prices do.

Invariants
* The first products of a longer catalogue are those of a shorter one with the same seed.
* Ids and titles are unique (a title alone finds its product again), except in the tiny vocabulary, where
  titles are made of so few words that they repeat.
* Values of different options of one product are distinct: a click on one says which option is meant.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from string import ascii_uppercase

from stepwell.core.errors import InputError
from stepwell.envs.shop.products.product import Option, Product
from stepwell.envs.shop.products.vocabulary import OptionSet, ProductKind, ProductVocabulary, strip_article

VERSION = 2  # a change of what is made needs another number: catalogues are cached by it
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHORT_IDS = [a + b for a in ascii_uppercase for b in ascii_uppercase]  # two tokens of a tiny model each
_ENDINGS = (99, 99, 95, 49, 0)


def generate_products(words: ProductVocabulary, seed: int, count: int) -> Iterator[Product]:
    """`count` products."""
    if words.id_style == "short" and count > len(_SHORT_IDS):
        raise InputError(f"num_products: with short ids there are at most {len(_SHORT_IDS)}, got {count}")
    rng = random.Random(seed)
    ids, titles = _make_ids(words.id_style, rng), set[str]()
    for _ in range(count):
        product = _make_product(words, rng, next(ids))
        while words.has_texts and product.title in titles:
            product = _make_product(words, rng, product.id)
        titles.add(product.title)
        yield product


def _make_ids(style: str, rng: random.Random) -> Iterator[str]:
    if style == "short":
        yield from random.Random(rng.random()).sample(_SHORT_IDS, len(_SHORT_IDS))
        return
    own, seen = random.Random(rng.random()), set[str]()
    while True:
        made = "B0" + "".join(own.choices(_ALPHABET, k=8))
        if made not in seen:
            seen.add(made)
            yield made


def _make_product(words: ProductVocabulary, rng: random.Random, number: str) -> Product:
    kind = rng.choice(words.kinds)
    brand, model = rng.choice(words.brands), rng.choice(words.models)
    phrases = _drop_rivals(kind, rng.sample(kind.phrases, rng.randint(*words.attributes_per_product)))
    price = _draw_price(kind, rng, cents=words.has_texts)
    named = {"brand": brand, "kind": kind.name, "model": model}
    return Product(
        number,
        _write_title(words, kind, named, phrases, rng),
        kind.name,
        kind.category,
        price,
        tuple(strip_article(phrase) for phrase in phrases),
        tuple(_draw_option(options, price, rng) for options in kind.options),
        _write_features(words, kind, named, phrases, rng),
        " ".join(line.format(**named) for line in rng.sample(words.neutral, min(3, len(words.neutral)))),
    )


def _drop_rivals(kind: ProductKind, phrases: list[str]) -> list[str]:
    """Of phrases that exclude each other, the first."""
    kept: list[str] = []
    for phrase in phrases:
        if not any(phrase in rivals and rivals.intersection(kept) for rivals in kind.rivals):
            kept.append(phrase)
    return kept


def _draw_price(kind: ProductKind, rng: random.Random, *, cents: bool) -> int:
    amount = math.exp(rng.uniform(math.log(kind.low), math.log(kind.high)))
    whole = max(1, round(amount))
    return (whole - 1) * 100 + rng.choice(_ENDINGS) if cents and whole > 1 else whole * 100


def _write_title(
    words: ProductVocabulary, kind: ProductKind, named: dict[str, str], phrases: list[str], rng: random.Random
) -> str:
    count = min(len(phrases), rng.randint(*words.title_attributes))
    phrases_used = [strip_article(phrase) for phrase in phrases[:count]]
    if not words.has_texts:
        return " ".join([*phrases_used, kind.name])
    first, rest = phrases_used[:1], phrases_used[1:]
    head = [named["brand"], named["model"], *first, kind.name, rng.choice(kind.lines)]
    return ", ".join(_capitalise(part) for part in [" ".join(head), *rest])


def _write_features(
    words: ProductVocabulary, kind: ProductKind, named: dict[str, str], phrases: list[str], rng: random.Random
) -> tuple[str, ...]:
    """A sentence on each attribute, and one or two on nothing in particular."""
    features = []
    for phrase in phrases:
        sentences = words.has_sentences if phrase in kind.has_phrases else words.is_sentences
        sentence = rng.choice(sentences)
        features.append(
            sentence.format(attribute=phrase, Attribute=_capitalize_first(strip_article(phrase)), **named)
        )
    if words.has_texts:
        features += [line.format(**named) for line in rng.sample(words.neutral, rng.randint(1, 2))]
        rng.shuffle(features)
    return tuple(features)


def _draw_option(options: OptionSet, price: int, rng: random.Random) -> Option:
    count = rng.randint(options.pick[0], min(options.pick[1], len(options.values)))
    if options.is_run:
        start = rng.randint(0, len(options.values) - count)
        values = options.values[start : start + count]
    else:
        chosen = set(rng.sample(options.values, count))
        values = tuple(value for value in options.values if value in chosen)
    if options.surcharge is None:
        return Option(options.name, values)
    share = rng.uniform(*options.surcharge)
    return Option(options.name, values, tuple(round(price * share * place) for place in range(count)))


def _capitalise(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]
