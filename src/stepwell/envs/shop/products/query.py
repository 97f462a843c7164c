"""From what somebody typed to what SQLite's full-text search is asked.

Whatever was typed, only its words are used: runs of letters and digits. Each becomes a quoted string of
FTS5's language, so that no sign of it (quotes, `*`, `-`, `^`, `:`, brackets, `AND`, `NEAR`) has a meaning,
and the expression travels as a bound parameter, never as part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WORDS = 16
MAX_WORD_CHARS = 40
_MAX_READ_CHARS = 4096
_WORD = re.compile(r"[^\W_]+")


def split_words(text: str) -> tuple[str, ...]:
    """The distinct words of a text in order, at most `MAX_WORDS`.

    >>> split_words('Red "shoes" OR red* -hat')
    ('red', 'shoes', 'or', 'hat')
    """
    found: dict[str, None] = {}
    for match in _WORD.finditer(text[:_MAX_READ_CHARS]):
        found[match.group()[:MAX_WORD_CHARS].casefold()] = None
        if len(found) == MAX_WORDS:
            break
    return tuple(found)


def match_all(words: Iterable[str]) -> str:
    """The expression that all these words match.

    >>> match_all(["red", "shoes"])
    '"red" AND "shoes"'
    """
    return " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
