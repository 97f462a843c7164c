"""The product store: one SQLite file with the products and a full-text index over them.

A search gives up words until it has found enough: first come the products that have all the words, then
those that have all but the commonest, and so on to the rarest word alone. Words that no product has are
left out, and so are those that thousands and every fifth have, unless there are no others; of the rest
the eight rarest count. Within a stage, BM25 decides, with titles and kinds weighing most, then the order
on the shelf. So every query costs a few small intersections, however common its words are, and a needless
word spoils nothing.

Invariants
* The file is never written after it was built: connections are read only, one per process and thread.
* Equal queries find equal products in equal order, on every machine.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stepwell.core.errors import EncodingError, EnvError
from stepwell.core.ids import hash_bytes
from stepwell.envs.shop.products.product import Product, list_texts
from stepwell.envs.shop.products.query import match_all, split_words

FORMAT = 1
MAX_RESULTS = 50
_MOST_WORDS = 8  # the rarest say enough
_COMMON, _COMMON_SHARE = 2000, 0.2
_RANKED_MOST = 10_000  # a word commoner than this says too little to rank by
_INDEXED_AT_ONCE = 64 << 20  # bytes of words held before they are written: fewer parts to merge in the end
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE products (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE COLLATE NOCASE,
                       kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE goals (number INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(title, kind, attributes, options, text, content='',
                                      tokenize='porter unicode61 remove_diacritics 2');
"""
_RANK = "round(bm25(words, 8.0, 8.0, 4.0, 2.0, 1.0), 6)"  # rounded: libraries differ in the last digits


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found: numbers of products, best first."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]


def write_store(path: Path, products: Iterable[Product], goals: Iterable[str] = ()) -> None:
    """Write products (and goals that come with them, as JSON) to a new file."""
    connection = sqlite3.connect(path)
    try:
        connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA)
        connection.execute(f"INSERT INTO words (words, rank) VALUES ('hashsize', {_INDEXED_AT_ONCE})")
        digest = ""
        count = 0
        for count, product in enumerate(products, start=1):
            body = product.to_json()
            digest = hash_bytes((digest + body).encode())
            connection.execute(
                "INSERT INTO products VALUES (?, ?, ?, ?)", (count, product.id, product.kind, body)
            )
            connection.execute(
                "INSERT INTO words (rowid, title, kind, attributes, options, text) VALUES (?, ?, ?, ?, ?, ?)",
                (count, *_list_indexed_texts(product)),
            )
        connection.executemany("INSERT INTO goals (body) VALUES (?)", ((goal,) for goal in goals))
        connection.execute("CREATE INDEX products_of_kind ON products (kind)")
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        about = {"format": FORMAT, "digest": digest, "num_products": count}
        connection.executemany("INSERT INTO about VALUES (?, ?)", [(k, str(v)) for k, v in about.items()])
        connection.commit()
    finally:
        connection.close()


def _list_indexed_texts(product: Product) -> tuple[str, ...]:
    values = " ".join(value for option in product.options for value in option.values)
    kind = " ".join([product.kind, *product.category])
    return (product.title, kind, " ".join(product.attributes), values, " ".join(list_texts(product)))


class Store:
    """A file of products, open for reading. Copies of an environment share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        about = self._read_header()
        self.digest, self.num_products = about["digest"], int(about["num_products"])
        (self.num_goals,) = self._query_rows("SELECT count(*) FROM goals")[0]
        self.search = lru_cache(maxsize=20_000)(self._search_products)
        self.product = lru_cache(maxsize=20_000)(self._read_product)
        self.number_of = lru_cache(maxsize=20_000)(self._find_number)
        self._num_with = lru_cache(maxsize=50_000)(self._count_products)

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (open_store, (self.path,))

    def of_kind(self, kind: str) -> Iterator[Product]:
        """All products of a kind, in the order of the shelf."""
        for (number,) in self._query_rows(
            "SELECT number FROM products WHERE kind = ? ORDER BY number", (kind,)
        ):
            yield self.product(number)

    def goal(self, number: int) -> str:
        """The goal of this number (from 0) among those that came with the products."""
        rows = self._query_rows("SELECT body FROM goals WHERE number = ?", (number + 1,))
        return str(rows[0][0])

    def _search_products(self, text: str) -> SearchResult:
        words = split_words(text)
        known = self._choose_words(words)
        found: dict[int, None] = {}
        for count in range(len(known), 0, -1):
            order = f"{_RANK}, rowid" if self._num_with(known[0]) <= _RANKED_MOST else "rowid"
            rows = self._query_rows(
                f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY {order} LIMIT ?",
                (match_all(known[:count]), MAX_RESULTS + len(found)),
            )
            found.update((int(number), None) for (number,) in rows)
            if len(found) >= MAX_RESULTS:
                break
        return SearchResult(words, tuple(found)[:MAX_RESULTS])

    def _choose_words(self, words: Sequence[str]) -> list[str]:
        """The words to look for, rarest first."""
        known = sorted((w for w in words if self._num_with(w)), key=lambda w: (self._num_with(w), w))
        common = max(_COMMON, _COMMON_SHARE * self.num_products)
        rare = [word for word in known if self._num_with(word) <= common]
        return rare[:_MOST_WORDS] or known[:1]

    def _count_products(self, word: str) -> int:
        (count,) = self._query_rows("SELECT count(*) FROM words WHERE words MATCH ?", (match_all([word]),))[0]
        return int(count)

    def _find_number(self, name: str) -> int | None:
        """The number of a product by its id, large or small letters; None if there is none."""
        rows = self._query_rows("SELECT number FROM products WHERE id = ?", (_to_plain(name),))
        return int(rows[0][0]) if rows else None

    def _read_product(self, number: int) -> Product:
        rows = self._query_rows("SELECT body FROM products WHERE number = ?", (number,))
        return Product.from_json(rows[0][0])

    def _read_header(self) -> dict[str, str]:
        try:
            about = dict(self._query_rows("SELECT name, value FROM about"))
            (count,) = self._query_rows("SELECT count(*) FROM products")[0]
        except (EnvError, ValueError) as error:
            raise EncodingError(f"{self.path.name} is not a product store: {error}") from error
        if about.get("format") != str(FORMAT) or about.get("num_products") != str(count):
            raise EncodingError(f"{self.path.name} is a product store of another format, or incomplete")
        return about

    def _query_rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Ask the file; what goes wrong then is the system's doing."""
        try:
            return self._connect().execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise EnvError(f"the product store {self.path} cannot be read: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        held: tuple[int, sqlite3.Connection] | None = getattr(self._local, "held", None)
        if held is None or held[0] != os.getpid():  # SQLite's connections must not cross a fork
            uri = f"{self.path.resolve().as_uri()}?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._local.held = held = (os.getpid(), connection)
        return held[1]


@lru_cache(maxsize=16)
def open_store(path: Path) -> Store:
    """The store of a file; one per process."""
    return Store(path)


def _to_plain(text: str) -> str:
    """Without what SQLite cannot be handed: halves of surrogate pairs."""
    return text.encode(errors="replace").decode()
