"""Words of a text, as an index by words counts them.

Lower case, without accents, split at whatever is neither letter nor digit: `São-Paulo's` gives `sao`,
`paulo`, `s`. There is no query language: quotes, operators and wildcards are only places to split,
so that no query can be malformed or mean more than its words.
"""

from __future__ import annotations

import re
import unicodedata

MAX_QUERY_CHARS = (
    2_000  # longer queries are cut: what an agent writes must not decide how long a search takes
)
MAX_QUERY_WORDS = 64
_WORD = re.compile(r"[^\W_]+")


def split_words(text: str) -> list[str]:
    """The words of a text, in order."""
    return _WORD.findall(to_plain(text))


def to_plain(text: str) -> str:
    """Lower case and free of accents; letters that have no plain form stay as they are."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)  # first, since it may yield capitals: ℌ is an H
    parts = unicodedata.normalize("NFKD", decomposed.casefold())
    return "".join(char for char in parts if not unicodedata.combining(char))


def cut_query(query: str) -> str:
    """As much of a query as an index reads, free of halves of characters."""
    return query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode("utf-8")


def split_query(query: str) -> list[str]:
    """The distinct words of a query, in order of their first use."""
    return list(dict.fromkeys(split_words(cut_query(query))))[:MAX_QUERY_WORDS]
