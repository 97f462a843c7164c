"""A matcher of answers without a model: facts must agree, and enough of the words.

    reference "driving: 13min, walking: 1h 35min"   facts {13 min, 95 min}    words {driv, walk}
    answer    "It takes 13 minutes by car …"         facts {13 min}            -> no: 95 min is missing

Numbers, durations (in minutes) and dates are facts, and every fact of the reference must be in the answer.
Of the remaining words, without endings and common words, the answer must hold a share of `min_share`. An
answer that begins with yes to a reference that begins with no, or the other way round, is wrong.

This is stricter than a model in the choice of words and blind to negation inside a sentence. It is meant for
tests, for training on your own sites, and for machines that cannot reach a model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Fact = tuple[str, float | str]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATES = (
    re.compile(rf"\b{_MONTH}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<year>\d{{4}})"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH},?\s+(?P<year>\d{{4}})"),
)
_SLASH_DATE = re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b")
_ISO_DATE = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_DURATION = re.compile(
    r"(?:\b(?P<hours>\d+)\s*(?:hours?|hrs?|h)\b[\s,]*(?:and\s+)?)?\b(?P<minutes>\d+)\s*(?:minutes?|mins?)\b"
    r"|\b(?P<only>\d+)\s*(?:hours?|hrs?|h)\b"
)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_COMMON_WORDS = """
    a an and are as at be been but by can for from had has have i in is it its of on or so that the their
    there these they this those to was were which will with you your s the n
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_NO = frozenset(("no", "not", "none", "cannot", "never", "n't", "without", "unable", "impossible"))
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "s", "ly", "e", "y")


@dataclass(frozen=True, slots=True)
class RuleMatcher:
    """Compares facts and words; `min_share` of the reference's words must be in the answer."""

    min_share: float = 0.6

    def matches_answer(self, question: str, reference: str, answer: str) -> bool:
        """Whether the answer holds all facts and enough words of the reference."""
        if _has_other_verdict(reference, answer):
            return False
        facts, words = extract_facts(reference)
        given_facts, given_words = extract_facts(answer)
        return facts <= given_facts and self._share_words(words, given_words)

    def matches_reason(self, question: str, reason: str, answer: str) -> bool:
        """Whether the answer denies something, and holds enough words of the reason."""
        given = set(_WORD.findall(answer.lower().replace("n't", " not")))
        _, words = extract_facts(reason)
        return not _NO.isdisjoint(given) and self._share_words(words - _NO, extract_facts(answer)[1])

    def _share_words(self, words: frozenset[str], given: frozenset[str]) -> bool:
        return not words or len(words & given) >= self.min_share * len(words)


def extract_facts(text: str) -> tuple[frozenset[Fact], frozenset[str]]:
    """The facts of a text (numbers, minutes, dates), and its other words without endings."""
    text, facts = _take_dates(text.lower())

    def note_duration(match: re.Match[str]) -> str:
        hours = int(match["hours"] or match["only"] or 0)
        facts.add(("minutes", float(60 * hours + int(match["minutes"] or 0))))
        return " "

    text = _DURATION.sub(note_duration, text)
    facts |= {("number", float(number.replace(",", ""))) for number in _NUMBER.findall(text)}
    words = (word.removesuffix("'s") for word in _WORD.findall(_NUMBER.sub(" ", text)))
    return frozenset(facts), frozenset(_cut_ending(word) for word in words if word not in _COMMON)


def _take_dates(text: str) -> tuple[str, set[Fact]]:
    """Take the dates out of a text; they come back as facts in the form year-month-day."""
    facts: set[Fact] = set()

    def note_date(year: str, month: int, day: str) -> str:
        facts.add(("date", f"{int(year) % 100:02d}-{month:02d}-{int(day):02d}"))
        return " "

    for pattern in _DATES:
        text = pattern.sub(
            lambda m: note_date(m["year"], _MONTHS.index(m[0][_find_month(m)][:3]) + 1, m["day"]), text
        )
    text = _SLASH_DATE.sub(lambda m: note_date(m[3], int(m[1]), m[2]), text)
    return _ISO_DATE.sub(lambda m: note_date(m[1], int(m[2]), m[3]), text), facts


def _find_month(match: re.Match[str]) -> slice:
    """Where the letters of the month stand inside a match."""
    found = re.search(_MONTH, match[0])
    assert found is not None
    return slice(*found.span(1))


def _cut_ending(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _has_other_verdict(reference: str, answer: str) -> bool:
    verdicts = [re.match(r"\W*(yes|no)\b", text.lower()) for text in (reference, answer)]
    return all(verdicts) and verdicts[0][1] != verdicts[1][1]  # type: ignore[index]
