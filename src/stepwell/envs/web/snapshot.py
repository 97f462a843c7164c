"""The tree of a page as plain data, the same for every reader of the page.

A node is `[tag, attributes, children, index, seen]`; a text is a `str` among the children. The Chromium
driver collects it with one script (`collect.js`), the light driver parses HTML into it (`read_html`).
`index` is the place of the element in the script's own list, so that an action finds it again (0 in the
light driver). `seen` is 1 if the element is on the screen, 0 if not, -1 if nobody knows.

Invariants
* Attributes are text. What a user changes is in them as well: `value`, `checked`, `selected`, `open`.
  A flag that is off is missing.
* The tree is at most `MAX_DEPTH` deep: elements that lie deeper are lifted to that depth. It has at most
  `MAX_NODES` nodes: what follows is left out, and `is_cut` says so. A hostile page costs bounded time and
  memory.
* Scripts, styles and comments are not in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stepwell.envs.web.addresses import resolve_address

MAX_NODES = 200_000
MAX_DEPTH = 150
_WITHOUT_TEXT = (
    "script style noscript template head meta link base title object embed param source track video audio "
    "canvas datalist"
)
NOT_SHOWN = frozenset(_WITHOUT_TEXT.split())
LISTENS = "-listens"  # set by the collecting script: a click on this element is listened to

_TITLE, _BASE = re.compile("<title", re.IGNORECASE), re.compile("<base", re.IGNORECASE)

Node = list[Any]


@dataclass(slots=True)
class Snapshot:
    """A page: its address, its title, its tree from `body` down, and what its links start from."""

    url: str
    title: str
    body: Node
    base: str
    is_cut: bool = False


def make_node(tag: str, attributes: dict[str, str] | None = None, children: list[Any] | None = None) -> Node:
    """A node that no browser knows."""
    return [tag, {} if attributes is None else attributes, [] if children is None else children, 0, -1]


def read_html(url: str, html: str) -> Snapshot:
    """Parse a page as a browser without scripts does."""
    from selectolax.lexbor import LexborHTMLParser

    parser = LexborHTMLParser(html)
    # A selector costs as much as the parser: it is asked only where the HTML has such a tag.
    title = parser.css_first("title") if _TITLE.search(html) else None
    base = parser.css_first("base[href]") if _BASE.search(html) else None
    body = make_node("body")
    is_cut = False if parser.body is None else _fill_node(parser.body, body)
    words = "" if title is None else " ".join((title.text_content or title.text() or "").split())
    start = url if base is None else resolve_address(base.attributes["href"] or "", url) or url
    return Snapshot(url, words, body, start, is_cut)


def _fill_node(source: Any, body: Node) -> bool:
    """Copy the children of a parsed element; True if there were too many."""
    left = MAX_NODES
    # What is still to copy: an item, the list for its texts, the list for its elements, its depth.
    stack: list[tuple[Any, list[Any], list[Any], int]] = [(source.first_child, body[2], body[2], 1)]
    while stack:
        item, texts, elements, depth = stack.pop()
        while item is not None:
            left -= 1
            if left < 0:
                return True
            tag, following = item.tag, item.next
            if tag == "-text":
                texts.append(item.text_content or "")
            elif tag[0] not in "-_!" and tag not in NOT_SHOWN:
                attributes = {key: "" if value is None else value for key, value in item.attributes.items()}
                node = make_node(tag, attributes)
                elements.append(node)
                if item.first_child is not None:
                    stack.append((following, texts, elements, depth))
                    item, texts = item.first_child, node[2]
                    elements = node[2] if depth < MAX_DEPTH else elements
                    depth += 1
                    continue
            item = following
    return False


def copy_tree(body: Node) -> tuple[Node, dict[int, Node]]:
    """A copy of a tree that can be changed, and its nodes by the `id` of the first ones."""
    copied: dict[int, Node] = {}

    def copy_node(node: Node) -> Node:
        children = [child if isinstance(child, str) else copy_node(child) for child in node[2]]
        made = copied[id(node)] = [node[0], dict(node[1]), children, node[3], node[4]]
        return made

    return copy_node(body), copied


def prepare_controls(body: Node) -> None:
    """Put the first state of form controls into their attributes, as a browser keeps it."""
    stack = [body]
    while stack:
        node = stack.pop()
        tag, attributes, children = node[0], node[1], node[2]
        if tag == "textarea":
            attributes["value"] = "".join(child for child in children if isinstance(child, str))
            node[2] = []
            continue
        if tag == "select":
            select_first_option(node)
        stack.extend(child for child in children if not isinstance(child, str))


def list_options(select: Node) -> list[Node]:
    """The options of a select, also those inside groups."""
    found: list[Node] = []
    for child in select[2]:
        if isinstance(child, str):
            continue
        if child[0] == "option":
            found.append(child)
        else:
            found += list_options(child)
    return found


def select_first_option(select: Node) -> None:
    """A select that shows one option has exactly one selected: the last one marked, or else the first."""
    options = list_options(select)
    if "multiple" in select[1] or not options:
        return
    marked = [option for option in options if "selected" in option[1]]
    enabled = [option for option in options if "disabled" not in option[1]] or options
    chosen = marked[-1] if marked else enabled[0]
    for option in options:
        if option is chosen:
            option[1]["selected"] = "true"
        else:
            option[1].pop("selected", None)


def read_text(node: Node) -> str:
    """The text below a node with its white space collapsed."""
    parts: list[str] = []
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            parts.append(item)
        else:
            stack.extend(reversed(item[2]))
    return " ".join("".join(parts).split())


def read_option_value(option: Node) -> str:
    """What a form sends for an option."""
    value = option[1].get("value")
    return read_text(option) if value is None else str(value)
