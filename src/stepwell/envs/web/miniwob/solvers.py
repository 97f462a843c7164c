"""Scripted solutions of click tasks of MiniWoB++, from what the page shows.

    view ─► the instruction of the page ─► the elements that it names ─► one click after the other

A solver keeps which elements it has clicked; everything else it reads from the present page. It exits when
the page says that the episode is over, or when nothing is left to click.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stepwell.core import ConfigError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.page import PageElement, PageView

Chooser = Callable[[PageView, str], list[str]]
IS_OVER = "The episode is over."
_QUOTED = re.compile(r'"([^"]+)"')
_SELECT = re.compile(r"Select (.+?) and click Submit", re.DOTALL)


def plan_clicks(name: str) -> Callable[[PageView], WebAction]:
    """The solution of the task `name`; `ConfigError` if there is none."""
    if name not in CHOOSERS:
        raise ConfigError(
            f"no scripted solution of {name!r}; there are some of {', '.join(sorted(CHOOSERS))}"
        )
    choose, clicked = CHOOSERS[name], list[str]()

    def choose_action(view: PageView) -> WebAction:
        if IS_OVER in view.text:
            return WebAction("exit")
        wanted = choose(view, view.text)
        fresh = [element for element in wanted if element not in clicked]
        if not fresh:
            return WebAction("exit")
        clicked.append(fresh[0])
        return WebAction("click", element=fresh[0])

    return choose_action


def _find_named(view: PageView, names: list[str], tags: str = "") -> Iterator[PageElement]:
    """The elements with one of these texts, in the order of the names; capitals decide between several."""
    kind = [element for element in view.elements if not tags or element.tag in tags.split()]
    for name in names:
        wanted = name.strip()
        alike = [element for element in kind if element.text.strip().lower() == wanted.lower()]
        exact = [element for element in alike if element.text.strip() == wanted]
        yield from (exact or alike)[:1]


def _choose_only(view: PageView, text: str) -> list[str]:
    return [element.id for element in view.elements if element.tag == "button"][:1]


def _choose_quoted(view: PageView, text: str) -> list[str]:
    """The element that the instruction names in quotes; "x" is the sign that closes a dialog box."""
    names = ["Close" if name == "x" else name for name in _QUOTED.findall(text)[:1]]
    return [element.id for element in _find_named(view, names, "button input span a")]


def _choose_numbers(view: PageView, text: str) -> list[str]:
    """Buttons by the words for their numbers, as far as the instruction goes."""
    names = ["ONE", "TWO"] if "then" in text else ["ONE"]
    return [element.id for element in _find_named(view, names, "button")]


def _choose_tab(view: PageView, text: str) -> list[str]:
    return [element.id for element in _find_named(view, re.findall(r"Tab #\d+", text)[:1], "a")]


def _choose_section(view: PageView, text: str) -> list[str]:
    """The heading of the section, then the button in it."""
    headings = [element.id for element in view.elements if element.tag == "h3"]
    return [*headings[:1], *_choose_only(view, text)]


def _choose_options(view: PageView, text: str) -> list[str]:
    """Boxes or circles that the instruction lists, then Submit."""
    found = _SELECT.search(" ".join(text.split()))
    listed = found[1] if found else ""
    names = [] if listed == "nothing" else [name.strip() for name in listed.split(",")]
    chosen = list(_find_named(view, names, "input"))
    return [element.id for element in (*chosen, *_find_named(view, ["Submit"], "button input"))]


def _choose_field(view: PageView, text: str) -> list[str]:
    """The field whose number the instruction says; the first if it says none."""
    fields = [element.id for element in view.elements if element.tag == "input"]
    number = re.search(r"the (\d+)(?:st|nd|rd|th)", text)
    return fields[int(number[1]) - 1 :][:1] if number else fields[:1]


def _choose_widget(view: PageView, text: str) -> list[str]:
    """An element of the kind that the instruction names: radio, checkbox, text, textarea or button."""
    (kind, *_) = [*_QUOTED.findall(text), ""]
    return [element.id for element in view.elements if _name_widget(element) == kind][:1]


def _name_widget(element: PageElement) -> str:
    if element.tag != "input":
        return element.tag
    kind = element.attributes.get("type", "")
    return kind if kind in ("radio", "checkbox") else "text"


def _choose_point(view: PageView, text: str) -> list[str]:
    """A point of the grid by its coordinates: columns from the left, each from its top."""
    points = [element.id for element in view.elements if element.tag == "circle"]
    found = re.search(r"\((-?\d),(-?\d)\)", text)
    return points[(int(found[1]) + 2) * 5 + 2 - int(found[2]) :][:1] if found else []


CHOOSERS: dict[str, Chooser] = {
    "click-button": _choose_quoted,
    "click-button-sequence": _choose_numbers,
    "click-checkboxes": _choose_options,
    "click-checkboxes-large": _choose_options,
    "click-checkboxes-transfer": _choose_options,
    "click-collapsible": _choose_section,
    "click-dialog": _choose_quoted,
    "click-dialog-2": _choose_quoted,
    "click-link": _choose_quoted,
    "click-option": _choose_options,
    "click-tab": _choose_tab,
    "click-tab-2-easy": _choose_quoted,
    "click-test": _choose_only,
    "click-test-2": _choose_numbers,
    "click-test-transfer": _choose_numbers,
    "click-widget": _choose_widget,
    "focus-text": _choose_field,
    "focus-text-2": _choose_field,
    "grid-coordinate": _choose_point,
    "unicode-test": _choose_quoted,
}
