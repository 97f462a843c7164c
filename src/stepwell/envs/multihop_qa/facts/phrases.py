"""Passages in several phrasings: which one a thing gets follows from its id alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def fill_phrase(phrasings: Sequence[str], id: str, **facts: object) -> str:
    """One of the phrasings, filled in."""
    return phrasings[zlib.crc32(id.encode()) % len(phrasings)].format(**facts)


def join_names(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
