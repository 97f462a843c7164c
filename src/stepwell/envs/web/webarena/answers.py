"""Judges the agent's answer: `string_match`.

    reference_answers         the answer is right if
    exact_match: text         it equals the text, apart from case, outer spaces and one pair of quotes
    must_include: [text, …]   it contains every text; a text that is one character must stand as a word
    must_exclude: [text, …]   it contains none of them
    one_of: [text, …]         it contains at least one of them
    required_values: [">= 3"] it is a whole number for which every inequality holds
    fuzzy_match: [text, …]    a matcher (a rule, or a model that the host names) finds it equivalent to each
    fuzzy_match: "N/A"        it is N/A, or the matcher finds in it the reason why the task cannot be done

Several rules on one task must all hold. `a |OR| b` inside a text means either.

The two dialects differ in three points. WebArena-Lite does not cut outer spaces, looks for every text of one
word among the words of the answer (WebArena: for single characters, and only if there is one text), where a
word with slashes counts in parts as well (`km/h` has `km`), and asks for fuzzy texts in one question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stepwell.envs.web.webarena.task import NOT_ACHIEVABLE, OR, Rules, WebArenaTask
from stepwell.envs.web.webarena.word_splitter import split_words

_INEQUALITY = re.compile(r"\s*(<=|>=|==|<|>)\s*(-?[\d.]+)\s*")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
    "==": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
}


class AnswerMatcher(Protocol):
    """Decides whether two texts mean the same: a rule, or a model."""

    def matches_answer(self, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` says what `reference` says, as an answer to `question`."""

    def matches_reason(self, question: str, reason: str, answer: str) -> bool:
        """Whether `answer` gives `reason` for why the task `question` cannot be done."""


def judge_answer(task: WebArenaTask, answer: str, matcher: AnswerMatcher) -> bool:
    """Whether `answer` meets all reference answers of `task`."""
    found = clean_text(answer, task.rules)
    references: Mapping[str, Any] = task.reference_answers or {}
    return all(_judge_rule(task, name, value, found, matcher) for name, value in references.items())


def _judge_rule(task: WebArenaTask, name: str, value: Any, found: str, matcher: AnswerMatcher) -> bool:
    if name != "fuzzy_match":
        return judge_text(name, value, found, task.rules)
    if value == NOT_ACHIEVABLE:
        is_equal = equals_text(NOT_ACHIEVABLE, found, task.rules)
        return is_equal or matcher.matches_reason(task.intent, task.note, found)
    texts = [value] if isinstance(value, str) else list(value)
    asked = [", ".join(texts)] if task.rules == "lite" else texts
    return all(matcher.matches_answer(task.intent, text, found) for text in asked)


def judge_text(name: str, value: Any, found: str, rules: Rules, *, in_page: bool = False) -> bool:
    """Whether `found` meets one rule that needs no matcher; texts of a page are never split into words."""
    texts: Sequence[str] = [value] if isinstance(value, str) else value
    match name:
        case "exact_match":
            return equals_text(texts[0], found, rules)
        case "must_include":
            as_word = not in_page and len(texts) == 1
            return all(
                any(includes_text(part, found, rules, as_word=as_word) for part in text.split(OR))
                for text in texts
            )
        case "must_exclude":
            return not any(
                includes_text(text, found, rules, as_word=True, splits_slashes=False) for text in texts
            )
        case "one_of":
            return any(clean_text(text, rules) in found for text in texts)
        case _:
            number = read_integer(found)
            return number is not None and all(
                any(meets_inequality(number, part) for part in text.split(OR)) for text in texts
            )


def clean_text(text: str, rules: Rules = "webarena") -> str:
    """`text` in lower case, without outer spaces and one pair of quotes."""
    text = text.strip() if rules == "webarena" else text
    for quote in "'\"":
        if text.startswith(quote) and text.endswith(quote):
            return text[1:-1].lower()
    return text.lower()


def equals_text(reference: str, found: str, rules: Rules = "webarena") -> bool:
    """Whether both texts are equal after cleaning."""
    return clean_text(found, rules) == clean_text(reference, rules)


def includes_text(
    reference: str,
    found: str,
    rules: Rules = "webarena",
    *,
    as_word: bool = False,
    splits_slashes: bool = True,
) -> bool:
    """Whether `found` contains `reference`; short references must stand as a word (see the module)."""
    wanted, text = clean_text(reference, rules), clean_text(found, rules)
    if rules == "lite":
        is_word = len(split_words(wanted)) == 1
    else:
        is_word = as_word and len(wanted) == 1 and not wanted.isspace()
    if not is_word:
        return wanted in text
    words = split_words(text)
    if rules == "lite" and splits_slashes:
        words += [part for word in words if "/" in word for part in word.split("/")]
    return wanted in words


def read_integer(text: str) -> int | None:
    """The whole number that `text` is, with or without commas; None if it is none."""
    try:
        return int(text.strip().replace(",", ""))
    except ValueError:
        return None


def meets_inequality(number: float, inequality: str) -> bool:
    """Whether `number` meets an inequality such as `>= 300`."""
    match = _INEQUALITY.fullmatch(inequality)
    return match is not None and _COMPARISONS[match[1]](number, float(match[2]))
