"""Answers and URLs around the right one: right ones in other clothes, near misses, and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

TextChange = Callable[[str, random.Random], str]
SENTENCES = (
    "I looked at every page.",
    "It took a while",
    "see the list, please",
    "is that right?",
    "12 of 30",
)
WRAPS = (
    "({})",
    "[{}]",
    '"{}"',
    "'{}'",
    "${}",
    "{}%",
    "{}.",
    "{},",
    "{}!",
    "{};",
    "x{}",
    "{}x",
    "{}/5",
    "-{}-",
)


def perturb_answer(references: Sequence[str], others: Sequence[str], rng: random.Random) -> str:
    """One made-up answer for a task with these references; `others` belong to other tasks."""
    texts = list(references)
    if rng.random() < 0.3:
        rng.shuffle(texts)
    if len(texts) > 1 and rng.random() < 0.3:
        texts.pop(rng.randrange(len(texts)))
    text = rng.choice((", ", "\n", " and ", ". ", "; ", " ")).join(texts)
    if rng.random() < 0.1:
        return rng.choice(("", " ", "N/A", "n/a", "'N/A'", "None", rng.choice(others)))
    for change in rng.choices(TEXT_CHANGES, k=rng.randint(0, 3)):
        text = change(text, rng)
    return text


def _drop_character(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text)) if text else 0
    return text[:at] + text[at + 1 :]


def _double_character(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text)) if text else 0
    return text[:at] + text[at : at + 1] + text[at:]


def _change_digit(text: str, rng: random.Random) -> str:
    places = [index for index, char in enumerate(text) if char.isdigit()]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + str(rng.randrange(10)) + text[at + 1 :]


TEXT_CHANGES: tuple[TextChange, ...] = (
    lambda text, rng: text.upper(),
    lambda text, rng: text.title(),
    lambda text, rng: f"  {text}\n",
    lambda text, rng: rng.choice(WRAPS).format(text),
    lambda text, rng: rng.choice(WRAPS).format(text),
    lambda text, rng: f"{rng.choice(SENTENCES)} {text}",
    lambda text, rng: f"{text} {rng.choice(SENTENCES)}",
    lambda text, rng: f"The answer is {text}. {rng.choice(SENTENCES)}",
    lambda text, rng: f"The answer is {text}",
    lambda text, rng: text.replace("&", "&amp;").replace("'", "&#39;"),
    lambda text, rng: text + str(rng.randrange(100)),
    lambda text, rng: str(rng.randrange(10)) + text,
    _drop_character,
    _double_character,
    _change_digit,
)


def perturb_url(references: Sequence[str], others: Sequence[str], rng: random.Random) -> str:
    """One made-up URL near one of the references, or another task's."""
    url = rng.choice(others) if rng.random() < 0.15 else rng.choice(references)
    for change in rng.choices(URL_CHANGES, k=rng.randint(0, 3)):
        url = change(url, rng)
    return url


def _change_query(url: str, rng: random.Random) -> str:
    parts = urlsplit(url)
    query = parse_qsl(parts.query)
    if query:
        at = rng.randrange(len(query))
        query[at : at + 1] = rng.choice(([], [(query[at][0], "other")], [query[at], (query[at][0], "other")]))
    return urlunsplit(parts._replace(query=urlencode(query)))


def _cut_path(url: str, rng: random.Random) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rpartition("/")[0]))


URL_CHANGES: tuple[TextChange, ...] = (
    lambda url, rng: url + "/",
    lambda url, rng: url.rstrip("/") + "//",
    lambda url, rng: url + "/more",
    lambda url, rng: url + "#comments",
    lambda url, rng: url + ("&" if "?" in url else "?") + "page=2",
    lambda url, rng: url.replace("http://", "https://"),
    lambda url, rng: url.swapcase(),
    lambda url, rng: url + ";x=1",
    _change_query,
    _change_query,
    _cut_path,
    _drop_character,
)
