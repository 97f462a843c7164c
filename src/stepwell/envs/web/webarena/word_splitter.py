"""Splits English text into words as WebArena's evaluator does, so that "0" is not found inside "10".

The evaluator uses NLTK's splitter of sentences and words, which needs data from the network. The few rules
that decide whether a word stands alone are written here as a scanner over lower-case text:

* Brackets, quotes, long dashes and `; @ # $ % & ? ! *` are words of their own. So are `--` and `...`.
* A colon or a comma is a word of its own unless a digit follows it (`1,000` and `10:30` stay whole).
* The last period of a sentence is a word of its own. Other periods belong to their word (`3.5`, `u.s.`).
* A sentence ends at a word with a period, except after an abbreviation, after an initial (`j.`), and after
  a number if a letter follows (`no 5. it is` keeps `5.` whole).
* `'s`, `'re`, `n't` and the like are split off a word.

Text is lower-case because answers are compared in lower case. `docs/webarena.md` says how often this agrees
with NLTK and where it does not: abbreviations are a short list here and a learnt one there.
"""

from __future__ import annotations

import re

_ALONE = re.compile(
    r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)|--|\.{2,}|``|''|[;@#$%&?!*()\[\]{}<>«»“”‘’„\"‒–—―]|[:,](?!\d)"
)
_CONTRACTION = re.compile(r"(?<=[^' ])(n't|'ll|'re|'ve|'s|'m|'d|')$")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_CLOSERS = "])}>\"'»”’"
_TWO_WORDS = {
    "cannot": ("can", "not"), "gimme": ("gim", "me"), "gonna": ("gon", "na"), "gotta": ("got", "ta"),
    "lemme": ("lem", "me"), "wanna": ("wan", "na"), "more'n": ("more", "'n"), "d'ye": ("d", "'ye"),
    "'tis": ("'t", "is"), "'twas": ("'t", "was"),
}  # fmt: skip
_ABBREVIATIONS = """
    a.m p.m u.s u.k u.n e.g i.e dr mr mrs ms jr sr st ave co corp inc ltd bros vs prof gen sen rep gov capt
    col sgt lt maj ft jan feb aug sept oct nov dec mt rev hon no. dept ph.d d.c n.y
"""
_KNOWN_ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())


def split_words(text: str) -> list[str]:
    """The words of lower-case text."""
    words: list[str] = []
    chunks = text.split()
    for index, chunk in enumerate(chunks):
        following = chunks[index + 1] if index + 1 < len(chunks) else ""
        words += _split_chunk(chunk, ends_sentence=not following or _ends_sentence(chunk, following))
    return words


def _ends_sentence(chunk: str, following: str) -> bool:
    body = chunk.rstrip(_CLOSERS)
    if not body.endswith("."):
        return False
    last = body.rstrip(".").lstrip("([{<\"'«“‘„")
    if last in _KNOWN_ABBREVIATIONS or last.rpartition("-")[2] in _KNOWN_ABBREVIATIONS:
        return False
    if len(last) == 1 and last.isalpha():
        return not (following[0].isalpha() or following[0] in ";:,.!?")
    if _NUMBER.fullmatch(last):
        return not (following[0].isalpha() or following[0] in ";:,.!?")
    return True


def _split_chunk(chunk: str, *, ends_sentence: bool) -> list[str]:
    """Split one run of text without spaces; the last period goes off if the chunk ends a sentence."""
    tail: list[str] = []
    if ends_sentence:
        body = chunk.rstrip(_CLOSERS)
        if body.endswith(".") and len(body) > 1 and body[-2] != ".":
            tail = [".", *_split_chunk(chunk[len(body) :], ends_sentence=False)]
            chunk = body[:-1]
    words: list[str] = []
    start = 0
    for match in _ALONE.finditer(chunk):
        words += _split_contraction(chunk[start : match.start()])
        words.append(match[0])
        start = match.end()
    return [*words, *_split_contraction(chunk[start:]), *tail]


def _split_contraction(word: str) -> list[str]:
    if not word:
        return []
    if word in _TWO_WORDS:
        return list(_TWO_WORDS[word])
    if match := _CONTRACTION.search(word):
        return [*_split_contraction(word[: match.start()]), match[0]]
    return [word]
