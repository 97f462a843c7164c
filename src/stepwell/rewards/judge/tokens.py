"""Text as tokens: words, numbers, tuples of numbers, punctuation; one pass of one regular expression."""

from __future__ import annotations

import re

from stepwell.rewards.judge.lexicon import NUMBERS

NUMBER = r"-?\d+(?:\.\d+)?"
_TOKEN = re.compile(
    rf"[(\[] ?{NUMBER}(?: ?, ?{NUMBER})+ ?[)\]]|{NUMBER}|[a-z]+(?:'[a-z]+)?|[,;:.!?\n=(){{}}\[\]|]"
)
_WHOLE = {
    "i'm": "i am", "you're": "you are", "it's": "it is", "there's": "there is", "he's": "he is",
    "she's": "she is",
}  # fmt: skip


def split_tokens(text: str) -> list[str]:
    """Words, numbers, tuples and punctuation; a sentence may continue on the next line."""
    text = text.lower().replace("\u2019", "'").replace("_", " ")
    text = re.sub(r"\b(i'm|you're|it's|there's|he's|she's)\b", lambda found: _WHOLE[found[0]], text)
    text = re.sub(r"(?<=[a-z])-(?=\w)", " ", re.sub(r"[^\S\n]+", " ", text))
    return _TOKEN.findall(re.sub(r"(,|\b(?:the|of|is|are|be|to|and|a|at|in|on|as)) ?\n", r"\1 ", text))


def parse_number(word: str) -> float | None:
    """The number of a token, in digits or as a word; None if it is not a number."""
    if word in NUMBERS:
        return float(NUMBERS[word])
    try:
        return float(word) if word[:1].isdigit() or word[:1] == "-" else None
    except ValueError:
        return None
