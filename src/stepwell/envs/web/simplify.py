"""A page's tree to simplified HTML with an id on every element that can be acted on. The rules:

1.  Left out: scripts, styles, metadata, media, hidden inputs, what has the attribute `hidden` or an inline
    style `display:none` or `visibility:hidden`, what a closed `details` or `dialog` hides. (Chromium also
    leaves out what style sheets hide.)
2.  Actionable: links with an address, buttons, inputs, selects, text areas, summaries, elements with a role
    of that kind, editable ones, those with `onclick` or a `tabindex` from 0, and, where scripts run, those
    that listen to clicks. They are numbered 1, 2, 3 … in document order over the whole page: the number is
    the id. The same page has the same ids on every render. The page's own ids are not shown.
3.  One block is one line. Wrappers vanish. Headings, list items, table rows and cells, terms keep their start
    tag; the line's end closes it. Inside links and buttons, blocks become spaces.
4.  An image shows its `alt`. A control shows type (unless text), value, placeholder, checked, disabled,
    read-only, its name only if no label before or around it and no other words tell what it is. A select
    shows its options.
5.  White space collapses. `<`, `>` and `&` of the page are escaped in text, and `"` in attributes: whatever a
    page says, a tag with an id is written by this module alone.
6.  A line longer than `MAX_LINE` characters of text is broken between words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from stepwell.envs.web.control_markup import (
    CONTROL_TAGS,
    QUOTE_ESCAPES,
    TEXT_ESCAPES,
    list_attributes,
    name_element,
    read_button_value,
    write_control,
    write_state,
)
from stepwell.envs.web.page import PageElement
from stepwell.envs.web.snapshot import (
    LISTENS,
    NOT_SHOWN,
    Node,
    Snapshot,
    read_text,
)

MAX_LINE = 600
_BLOCK_TAGS = (
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol p pre search section "
    "summary table tbody tfoot thead caption tr ul iframe"
)
_ACTIVE_ROLES = (
    "button link checkbox radio tab menuitem menuitemcheckbox menuitemradio option switch textbox searchbox "
    "combobox slider spinbutton treeitem gridcell"
)
BLOCKS, ROLES = frozenset(_BLOCK_TAGS.split()), frozenset(_ACTIVE_ROLES.split())
TAGS_SHOWN = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "li", "tr", "td", "th", "dt", "dd"})
_HIDDEN_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)


class ViewLayout(NamedTuple):
    """A simplified page under a viewport, as views show it."""

    viewport: tuple[int, int]
    is_screen: bool
    html: str
    text: str
    elements: tuple[PageElement, ...]


@dataclass(slots=True)
class SimplePage:
    """The lines of simplified HTML, the plain text, and the elements with the nodes they stand for."""

    lines: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    elements: list[PageElement] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    element_lines: list[int] = field(default_factory=list)
    screen: tuple[int, int] | None = None  # lines on the screen, first and last + 1; None: unknown
    layout: ViewLayout | None = None  # the last one, so that the same page is laid out once


def simplify_page(snapshot: Snapshot) -> SimplePage:
    """Write a page by the rules above."""
    writer = _PageWriter()
    writer.write_node(snapshot.body, is_inline=False)
    return writer.finish_page()


def is_hidden(node: Node) -> bool:
    """Whether a node shows nothing, as far as its own attributes tell."""
    tag, attributes = node[0], node[1]
    if not attributes:
        return tag in NOT_SHOWN or tag == "dialog"
    return (
        tag in NOT_SHOWN
        or "hidden" in attributes
        or (tag == "input" and attributes.get("type", "").lower() == "hidden")
        or (tag == "dialog" and "open" not in attributes)
        or ("style" in attributes and _HIDDEN_STYLE.search(attributes["style"]) is not None)
    )


def is_actionable(node: Node) -> bool:
    """Whether an action can name this node."""
    tag, attributes = node[0], node[1]
    if tag in ("button", "input", "select", "textarea", "summary"):
        return True
    if not attributes or tag in ("body", "html", "option"):
        return False
    if tag == "a" and "href" in attributes:
        return True
    return (
        LISTENS in attributes
        or "onclick" in attributes
        or attributes.get("role", "").lower() in ROLES
        or attributes.get("contenteditable", "false").lower() in ("", "true", "plaintext-only")
        or attributes.get("tabindex", "").isdigit()
    )


class _PageWriter:
    """Walks a tree once. The present line grows in `parts` (markup) and `words` (text)."""

    def __init__(self) -> None:
        self.page = SimplePage()
        self.parts: list[str] = []
        self.words: list[str] = []
        self.length = 0  # characters of text in the present line
        self.has_space = True  # nothing, or a space, was written last
        self.start_tag = ""  # shown once the line has content
        self.is_seen = False
        self.seen_lines: list[int] = []
        self.labels: dict[str, str] = {}  # page's own id -> text of its label
        self.wrapping: dict[int, str] = {}  # place of an element -> text of the label around it
        self.label_depth = 0
        self.pending: list[tuple[Node, str, int]] = []  # node, text inside, line

    def write_node(self, node: Node, is_inline: bool) -> None:
        """Write one element with all that is below it."""
        if is_hidden(node):
            return
        tag = node[0]
        is_block = tag in BLOCKS and not is_inline
        if is_block:
            self.end_line()
        if tag in TAGS_SHOWN:
            self._open_shown_tag(tag, is_inline)
        if node[4] == 1 and tag not in BLOCKS:
            self.is_seen = True
        if is_actionable(node):
            self._write_actionable(node, is_inline)
        elif tag == "img":
            self._write_image(node)
        elif tag == "br":
            self._break_line(is_inline)
        elif tag == "label":
            self._write_label(node, is_inline)
        elif tag == "svg":
            self._write_drawing(node, is_inline)
        else:
            self._write_children(node, is_inline)
        if is_block:
            self.end_line()

    def write_text(self, text: str) -> None:
        """Add text of the page to the line; white space collapses to one space."""
        words = text.split()
        if not words:
            self.add_space()
            return
        if text[0].isspace():
            self.add_space()
        if self.length > MAX_LINE:
            self.end_line()
        for start in range(0, len(words), 80):
            joined = " ".join(words[start : start + 80])
            self.add_part(joined.translate(TEXT_ESCAPES), joined)
            if start + 80 < len(words):
                self.add_space()
                if self.length > MAX_LINE:
                    self.end_line()
        if text[-1].isspace():
            self.add_space()

    def add_part(self, markup: str, words: str = "") -> None:
        """Add markup, and the text that it shows."""
        if self.start_tag:
            self.parts.append(self.start_tag)
            self.start_tag = ""
        self.parts.append(markup)
        self.has_space = False
        if words:
            self.words.append(words)
            self.length += len(words)

    def add_space(self) -> None:
        """Separate from what follows."""
        if not self.has_space:
            self.parts.append(" ")
            self.words.append(" ")
            self.has_space = True

    def end_line(self) -> None:
        """Close the present line, if anything is in it."""
        markup = "".join(self.parts).rstrip()
        if markup:
            if self.is_seen:
                self.seen_lines.append(len(self.page.lines))
            self.page.lines.append(markup)
            words = " ".join("".join(self.words).split())
            if words:
                self.page.texts.append(words)
        self.parts.clear()
        self.words.clear()
        self.length, self.has_space, self.start_tag, self.is_seen = 0, True, "", False

    def finish_page(self) -> SimplePage:
        """The page, with the elements' texts from labels that came later."""
        self.end_line()
        page = self.page
        for number, (node, inside, line) in enumerate(self.pending, 1):
            label = self.labels.get(node[1].get("id", "")) or self.wrapping.get(number - 1, "")
            text = inside or name_element(node, label)
            seen = node[4] != 0
            page.elements.append(PageElement(str(number), node[0], text, list_attributes(node), seen))
            page.nodes[str(number)] = node
            page.element_lines.append(line)
        if self.seen_lines:
            page.screen = self.seen_lines[0], self.seen_lines[-1] + 1
        return page

    def _open_shown_tag(self, tag: str, is_inline: bool) -> None:
        if is_inline:
            self.add_space()
        elif tag in ("td", "th"):  # cells share the line of their row, empty ones too
            self.add_part(f"<{tag}>")
            self.words.append(" ")
            self.has_space = True
        else:
            self.start_tag = f"<{tag}>"

    def _write_children(self, node: Node, is_inline: bool) -> None:
        is_closed = node[0] == "details" and "open" not in node[1]
        for child in node[2]:
            if isinstance(child, str):
                if not is_closed:
                    if node[4] == 1:
                        self.is_seen = True
                    self.write_text(child)
            elif not is_closed or child[0] == "summary":
                self.write_node(child, is_inline)
        if is_inline and node[0] in BLOCKS:
            self.add_space()

    def _break_line(self, is_inline: bool) -> None:
        if is_inline:
            self.add_space()
        else:
            self.end_line()

    def _write_image(self, node: Node) -> None:
        words = " ".join(node[1].get("alt", "").split())
        if words:
            self.add_part(f'<img alt="{words.translate(QUOTE_ESCAPES)}">', words)

    def _write_drawing(self, node: Node, is_inline: bool) -> None:
        """Of a drawing only its name and what can be acted on."""
        words = " ".join(node[1].get("aria-label", "").split())
        if words:
            self.add_part(f'<img alt="{words.translate(QUOTE_ESCAPES)}">', words)
        stack = list(reversed(node[2]))
        while stack:
            child = stack.pop()
            if isinstance(child, str) or is_hidden(child):
                continue
            if is_actionable(child):
                self._write_actionable(child, is_inline)
            else:
                stack.extend(reversed(child[2]))

    def _write_label(self, node: Node, is_inline: bool) -> None:
        first = len(self.pending)
        target = node[1].get("for", "")
        words = read_text(node)
        if target and words:
            self.labels.setdefault(target, words)
        self.label_depth += bool(words)
        self._write_children(node, is_inline)
        self.label_depth -= bool(words)
        if len(self.pending) > first:
            self.wrapping.setdefault(first, words)

    def _write_actionable(self, node: Node, is_inline: bool) -> None:
        tag, attributes = node[0], node[1]
        number = len(self.pending) + 1
        self.pending.append((node, "", len(self.page.lines)))
        place = number - 1
        if tag in CONTROL_TAGS:
            has_label = self.label_depth > 0 or attributes.get("id") in self.labels
            self.words.append(" ")
            self.add_part(write_control(node, number, has_label), read_button_value(node))
            self.words.append(" ")
            return
        keeps_blocks = tag in BLOCKS and tag != "summary" and attributes.get("role", "").lower() not in ROLES
        if keeps_blocks and not is_inline:
            self.add_part(f"<{tag} id={number}>")
            self._write_children(node, is_inline)
            self.add_part(f"</{tag}>")
            self.pending[place] = node, read_text(node), self.pending[place][2]
            return
        start = len(self.words)
        self.add_part(f"<{tag} id={number}{write_state(node)}>")
        self.has_space = True
        self._write_children(node, True)
        self._drop_last_space()
        self.add_part(f"</{tag}>")
        inside = " ".join("".join(self.words[start:]).split())
        self.pending[place] = node, inside, len(self.page.lines)

    def _drop_last_space(self) -> None:
        if self.parts and self.parts[-1] == " ":
            self.parts.pop()
