"""HTML out of Python calls. Text is escaped unless it is `Html` already, so no page can forget to.

A page is a list of blocks: facts ("Price: $12", one line each), rows with links, forms. Every field has a
visible label and a short `name`; every form has one button with words on it. There are no scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from urllib.parse import urlencode


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]
_VOID = {"input", "br", "hr", "meta", "img"}


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """One element. `class_` means class; True is a bare attribute, None and False leave it out.

    >>> tag("a", "1 < 2", href="/x?a=1&b=2")
    '<a href="/x?a=1&amp;b=2">1 &lt; 2</a>'
    """
    marks = "".join(
        [
            _name_attribute(key) + ("" if value is True else f'="{escape_text(str(value))}"')
            for key, value in attributes.items()
            if value is not None and value is not False
        ]
    )
    return Html(f"<{name}{marks}>" if name in _VOID else f"<{name}{marks}>{join(*children)}</{name}>")


@lru_cache(maxsize=256)
def _name_attribute(key: str) -> str:
    return " " + key.rstrip("_").replace("_", "-")


@lru_cache(maxsize=8192)
def escape_text(text: str) -> str:
    """Text as HTML shows it; the same words come again and again, so they are kept."""
    return escape(text)


def join(*children: Child) -> Html:
    """Children one after another, text escaped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escape_text(child))
        elif child is not None:
            parts.append(join(*child))
    return Html("".join(parts))


def link(text: str, href: str, **attributes: str | None) -> Html:
    """A link."""
    return tag("a", text, href=href, **attributes)


def fact(label: str, value: object) -> Html:
    """One line "Label: value"; a value that is HTML stays so."""
    shown = value if isinstance(value, Html) else str(value)
    return tag("p", f"{label}: ", shown, class_="fact")


def field(label: str, name: str, value: object = "", kind: str = "text") -> Html:
    """A labelled input."""
    return tag("label", f"{label} ", tag("input", name=name, type=kind, value=str(value) or None))


def area(label: str, name: str, value: str = "") -> Html:
    """A labelled text area."""
    return tag("label", f"{label} ", tag("textarea", value, name=name, rows=4))


def choice(label: str, name: str, options: Iterable[str] | Mapping[str, str], value: str = "") -> Html:
    """A labelled drop-down; a mapping goes from value to what is shown."""
    pairs = options.items() if isinstance(options, Mapping) else [(option, option) for option in options]
    made = [tag("option", shown, value=key, selected=key == value) for key, shown in pairs]
    return tag("label", f"{label} ", tag("select", made, name=name))


def write_hidden_field(name: str, value: object) -> Html:
    """A value that travels with a form unseen."""
    return tag("input", type="hidden", name=name, value=str(value))


def form(action: str, button: str, *fields: Html, method: str = "post", class_: str | None = None) -> Html:
    """A form with its one button."""
    return tag("form", fields, tag("button", button), action=action, method=method, class_=class_)


def bullet_list(rows: Sequence[Child]) -> Html:
    """Rows, or the word that there is nothing."""
    return tag("ul", [tag("li", row) for row in rows]) if rows else tag("p", "Nothing here.")


def add_query(path: str, query: Mapping[str, str], **changes: object) -> str:
    """A path with a query string; a changed value that is empty is left out."""
    merged = {key: value for key, value in query.items() if value} | {
        key: str(value) for key, value in changes.items()
    }
    kept = {key: value for key, value in merged.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path
