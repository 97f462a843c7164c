"""Answers compared: normalised exact match.

Before two answers are compared both lose what spelling alone decides: upper case, accents (NFKD, marks
dropped), punctuation and the signs of a keyboard (dropped, so that `1,234` is `1234`), the articles *a*,
*an* and *the*, and blanks beyond one. Letters without a plain form stay, so `Łódź` is `łodz`.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable

from stepwell.envs.retrieval.text import to_plain

ARTICLES = frozenset({"a", "an", "the"})
_SIGNS = frozenset(string.punctuation)


def normalise_answer(text: str) -> str:
    """What is compared of an answer.

    >>> normalise_answer(" The  São-Tomé dobra (STN)! ")
    'saotome dobra stn'
    """
    kept = (char for char in to_plain(text) if not _is_punctuation(char))
    return " ".join(word for word in "".join(kept).split() if word not in ARTICLES)


def is_right(answer: str, accepted: Iterable[str]) -> bool:
    """Whether an answer is one of those accepted; an empty one never is."""
    given = normalise_answer(answer)
    return bool(given) and any(given == normalise_answer(right) for right in accepted)


def _is_punctuation(char: str) -> bool:
    return char in _SIGNS or unicodedata.category(char).startswith("P")
