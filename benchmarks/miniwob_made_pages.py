"""Pages made up in the form of six click pages of MiniWoB++, with the click that is right, without a browser.

Words and labels are drawn by chance: words of Python's own help, syllables, letters. The eight labels that
`click-button` itself uses are never drawn, so its pages cannot be learnt by heart. `click-tab`,
`click-dialog-2`, `focus-text-2` and `grid-coordinate` have the few problems of the real ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache

REAL_LABELS = frozenset({"submit", "okay", "ok", "yes", "no", "cancel", "next", "previous"})
_STARTS = [*"bcdfghjklmnprstvwz", "ch", "sh", "st", "tr"]
_SYLLABLES = [start + vowel + end for start in _STARTS for vowel in "aeiou" for end in ("", *"nrslt")]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SIGNS = _LETTERS + _LETTERS.upper() + "0123456789"
Page = tuple[str, int]
"""What the page shows below `Page:`, and the id of the element to click."""


def make_page(rng: random.Random) -> Page:
    """An observation as the preset `miniwob-tiny` shows it, and the right element."""
    text, right = rng.choices(list(MAKERS.values()), [8, 6, 2, 2, 1, 4])[0](rng)
    return f"Task: Do what the page asks for.\nPage:\n{text}", right


@cache
def list_words() -> list[str]:
    """English words of Python's help."""
    from pydoc_data.topics import topics

    found = {word.lower() for text in topics.values() for word in re.findall(r"[A-Za-z]{2,10}", text)}
    return sorted(found)


def make_word(rng: random.Random) -> str:
    """A word, some syllables, or letters; never a label of the real page."""
    word = ""
    while word in REAL_LABELS | {""}:
        kind = rng.random()
        if kind < 0.5:
            word = rng.choice(list_words())
        elif kind < 0.75:
            word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((1, 1, 2, 2, 3))))
        else:
            word = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(2, 8)))
    return word


def make_words(rng: random.Random, count: int) -> str:
    """Some words, a few with a comma or a full stop."""
    return " ".join(make_word(rng) + (rng.choice(",.") if rng.random() < 0.15 else "") for _ in range(count))


def make_sentence(rng: random.Random, count: int) -> str:
    """Some words, capitals where a sentence begins."""
    words = make_words(rng, count).split()
    for i, word in enumerate(words):
        if i == 0 or words[i - 1].endswith("."):
            words[i] = word.capitalize()
    return " ".join(words).rstrip(",.") + "."


def make_buttons(rng: random.Random) -> Page:
    """Text, fields and buttons in any order; a button is named."""
    labels = [make_word(rng) for _ in range(rng.choice((3, 5, 8)))]
    count = rng.choice((2, 4, 6, 6, 6, 8))
    text, number, is_line_start, buttons = "", 0, True, list[tuple[str, int]]()
    for i in range(count):
        share = 1.0 if i == count - 1 and not buttons else rng.random()
        if share < 0.33:
            text += ("" if is_line_start else "\n") + make_words(rng, 3) + "\n"
            is_line_start = True
            continue
        number += 1
        if share < 0.66:
            name = make_words(rng, 3) + ": " if rng.random() < 0.5 else ""
            text += (" " if name and not is_line_start else "") + f"{name}[{number}]\n"
            is_line_start = True
            continue
        label = rng.choice(labels)
        label = label[0].upper() + label[1:] if rng.random() < 0.5 else label
        buttons.append((label, number))
        is_line_start = rng.random() < 0.5
        text += f"[{number}]{label}" + ("\n" if is_line_start else "")
    named = rng.choice(buttons)[0]
    right = next(place for label, place in buttons if label == named)
    return f'Click on the "{named}" button.\n' + text.rstrip("\n"), right


def make_widgets(rng: random.Random) -> Page:
    """Widgets of five kinds; a kind is named."""
    lines, first = [], dict[str, int]()
    for i in range(1, 1 + rng.choice((2, 3, 5, 5, 5, 5))):
        kind = rng.choice(("radio", "checkbox", "text", "textarea", "button"))
        label = "".join(rng.choice(_SIGNS) for _ in range(rng.randint(1, 5)))
        inner = {
            "text": f'[{2 * i} type="input" value="{label}"]',
            "textarea": f'[{2 * i} value="{label}"]',
            "button": f"[{2 * i}]{label}",
        }.get(kind, f'[{2 * i} type="{kind}"]{label}')
        lines.append(f"[{2 * i - 1}]{inner}")
        first.setdefault(kind, 2 * i)
    kind = rng.choice(list(first))
    return f'Click on a "{kind}" widget.\n' + "\n".join(lines), first[kind]


def make_tabs(rng: random.Random) -> Page:
    """Three tabs, one of them open."""
    wanted = rng.randint(1, 3)
    shown = 1 if wanted == 2 else rng.choice([tab for tab in (1, 2, 3) if tab != wanted])
    mark = ' aria-expanded="true" aria-selected="true"'
    tabs = "\n".join(f"[{2 * t}{mark if t == shown else ''}][{2 * t + 1}]Tab #{t}" for t in (1, 2, 3))
    return f"Click on Tab #{wanted}.\n[1]\n{tabs}\n\n{make_sentence(rng, 20)}", 2 * wanted + 1


def make_dialog(rng: random.Random) -> Page:
    """A dialog box with two buttons and a cross."""
    wanted, right = rng.choice((("x", 3), ("Cancel", 4), ("OK", 5)))
    body = make_sentence(rng, rng.randint(4, 7))
    head = f'Click the button in the dialog box labeled "{wanted}".'
    return f'{head}\n[1]\n[2] [3 title="Close"]Close\n{body}\n[4]Cancel[5]OK\n', right


def make_fields(rng: random.Random) -> Page:
    """Three fields in a row."""
    wanted = rng.randint(1, 3)
    place = ("1st", "2nd", "3rd")[wanted - 1]
    return f"Focus into the {place} input textbox.\n[1] [2] [3]", wanted


def make_grid(rng: random.Random) -> Page:
    """Twenty-five points without names, column by column from the top."""
    x, y = rng.randint(-2, 2), rng.randint(-2, 2)
    points = "".join(f"[{i}]" for i in range(1, 26))
    axes = "x\ny\n0\n-2\n-1\n1\n2\n-2\n-1\n1\n2"
    return f"Click on the grid coordinate ({x},{y}).\n{points}\n{axes}", (x + 2) * 5 + 3 - y


MAKERS: dict[str, Callable[[random.Random], Page]] = {
    "click-button": make_buttons,
    "click-widget": make_widgets,
    "click-tab": make_tabs,
    "click-dialog-2": make_dialog,
    "focus-text-2": make_fields,
    "grid-coordinate": make_grid,
}
