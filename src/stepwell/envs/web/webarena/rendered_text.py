"""The text of an element as a browser shows it, read from tags alone.

Browsers answer `innerText` and `outerText` with the text as it is laid out: spaces are collapsed, blocks
begin on lines of their own, paragraphs have an empty line around them, cells of a row have tabs between.
Without style sheets the tags decide: the usual display of each tag, `hidden`, and `display: none` in a
`style` attribute.
"""

from __future__ import annotations

import re
from typing import Any

_INVISIBLE = frozenset(
    ("script", "style", "template", "head", "noscript", "title", "meta", "link", "input", "textarea",
     "iframe", "object", "video", "audio", "canvas", "svg", "datalist")
)  # fmt: skip
_BLOCKS = frozenset(
    ("address", "article", "aside", "blockquote", "body", "dd", "details", "dialog", "div", "dl", "dt",
     "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
     "html", "legend", "li", "main", "menu", "nav", "ol", "optgroup", "option", "pre", "section", "summary",
     "table", "tbody", "tfoot", "thead", "tr", "ul", "caption")
)  # fmt: skip
_PARAGRAPHS = frozenset(("p",))
_CELLS = frozenset(("td", "th"))
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\r\n\f]+")


def render_text(element: Any) -> str:
    """The text of `element` as a browser shows it."""
    writer = _TextWriter()
    _write_children(element, writer, keeps_spaces=element.tag == "pre")
    return writer.finish()


class _TextWriter:
    """Collects text; breaks between blocks merge into the largest, and none stands at either end."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.breaks = 0
        self.has_space = True  # at the start of a line spaces are dropped

    def write_text(self, text: str, *, keeps_spaces: bool) -> None:
        if not keeps_spaces:
            text = _SPACES.sub(" ", text)
            if self.has_space or self.breaks:
                text = text.removeprefix(" ")
        if not text:
            return
        self._write_breaks()
        self.parts.append(text)
        self.has_space = text.endswith((" ", "\n")) and not keeps_spaces

    def break_line(self, count: int) -> None:
        self.breaks = max(self.breaks, count)
        self.has_space = True

    def write_sign(self, sign: str) -> None:
        self._write_breaks()
        self._drop_space()
        self.parts.append(sign)
        self.has_space = True

    def finish(self) -> str:
        self._drop_space()
        return "".join(self.parts)

    def _write_breaks(self) -> None:
        if self.breaks and self.parts:
            self._drop_space()
            self.parts.append("\n" * self.breaks)
        self.breaks = 0

    def _drop_space(self) -> None:
        if self.parts and self.parts[-1].endswith(" "):
            self.parts[-1] = self.parts[-1][:-1]


def _write_children(element: Any, writer: _TextWriter, *, keeps_spaces: bool) -> None:
    if element.text:
        writer.write_text(element.text, keeps_spaces=keeps_spaces)
    for child in element:
        if isinstance(child.tag, str) and not _is_hidden(child):
            _write_element(child, writer, keeps_spaces=keeps_spaces or child.tag == "pre")
        if child.tail:
            writer.write_text(child.tail, keeps_spaces=keeps_spaces)


def _write_element(element: Any, writer: _TextWriter, *, keeps_spaces: bool) -> None:
    if element.tag == "br":
        writer.write_sign("\n")
        return
    lines = 2 if element.tag in _PARAGRAPHS else 1 if element.tag in _BLOCKS else 0
    if lines:
        writer.break_line(lines)
    _write_children(element, writer, keeps_spaces=keeps_spaces)
    if lines:
        writer.break_line(lines)
    following = element.getnext()
    if element.tag in _CELLS and following is not None and following.tag in _CELLS:
        writer.write_sign("\t")


def _is_hidden(element: Any) -> bool:
    is_hidden = element.tag in _INVISIBLE or element.get("hidden") is not None
    return is_hidden or _HIDDEN_STYLE.search(element.get("style") or "") is not None
