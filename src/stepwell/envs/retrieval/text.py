"""Splits texts into the words of a word index.

Lower case, without accents, split at every character that is neither a letter nor a digit: `São-Paulo's`
gives `sao`, `paulo`, `s`. There is no query language: quotes, operators and wildcards only separate words, so
no query can be malformed or mean more than its words.
"""

from __future__ import annotations

import re
import unicodedata

MAX_QUERY_CHARS = 2_000  # longer queries are cut, so that an agent cannot control how long a search takes
MAX_QUERY_WORDS = 64
_WORD = re.compile(r"[^\W_]+")


def split_words(text: str) -> list[str]:
    """The words of a text, in order."""
    return _WORD.findall(to_plain(text))


def to_plain(text: str) -> str:
    """Lower case without accents; letters without a plain form do not change."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)  # first, since it may yield capitals: ℌ is an H
    parts = unicodedata.normalize("NFKD", decomposed.casefold())
    return "".join(char for char in parts if not unicodedata.combining(char))


def cut_query(query: str) -> str:
    """Cut a query to the length that an index reads, without broken characters."""
    return query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode("utf-8")


def split_query(query: str) -> list[str]:
    """The distinct words of a query, in order of their first use."""
    return list(dict.fromkeys(split_words(cut_query(query))))[:MAX_QUERY_WORDS]
