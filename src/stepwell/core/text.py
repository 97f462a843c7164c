"""Text for prompts, messages and files: counts, short quotes, and half surrogates joined or replaced.

Python strings can hold half of a surrogate pair (`"\\ud83d"`), for instance from JSON that was cut inside an
escape. Such text has no UTF-8 form, so a tokenizer, a database or a file would refuse it later. Text from an
environment is cleaned once, where it enters (`Observation`, `envs/batch.py`).
"""

from __future__ import annotations

from typing import Any

_TEXTLESS = frozenset([type(None), bool, int, float])


def format_count(count: int, word: str) -> str:
    """`1 pass`, `2 passes`, `3 updates`."""
    ending = "" if count == 1 else "es" if word.endswith(("s", "tch")) else "s"
    return f"{count} {word}{ending}"


def replace_half_surrogates(text: str) -> str:
    """The text with surrogate pairs joined to characters and lone halves replaced by U+FFFD.

    >>> replace_half_surrogates("a\\ud83d\\ude00b\\ud83d") == "a\U0001f600b\ufffd"
    True
    """
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def quote_short(text: str) -> str:
    """The text in quotes on one line, cut to 40 characters, for messages."""
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else line[:37] + "...")


def take_first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where there is none, for messages."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def describe_error(error: BaseException) -> str:
    """The type of an error and its message, safe to store: a user's environment may raise any text."""
    return replace_half_surrogates(f"{type(error).__name__}: {error}")


def clean_texts(value: Any) -> Any:
    """A JSON value in which every text can be encoded."""
    if isinstance(value, str):
        return value if value.isascii() else replace_half_surrogates(value)
    if isinstance(value, dict):
        for name, entry in value.items():  # most often there is nothing to clean
            if type(name) is not str or type(entry) not in _TEXTLESS or not name.isascii():
                break
        else:
            return dict(value)
        cleaned = {}
        for name, entry in value.items():
            key = name if type(name) is str and name.isascii() else clean_texts(name)
            cleaned[key] = entry if type(entry) in _TEXTLESS else clean_texts(entry)
        return cleaned
    if isinstance(value, list):
        return [clean_texts(entry) for entry in value]
    return value
