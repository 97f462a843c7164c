"""Evaluates a locator over a page's HTML, where no script runs.

    parse_locator ─► tree ─► evaluate over the HTML ─► text, as a browser's value reads in Python

Selectors are CSS; a bracket that a task forgot to close is closed, as browsers do. Properties are the fixed
tables below. What a page's scripts would add is not there, and `outerText` follows tags, not style sheets.

Invariants
* A locator that finds nothing (a property of nothing, a selector without a match) gives the empty text.
* `None` reads "None" and `True` reads "True", because that is what the published evaluators compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepwell.core import ConfigError, InputError
from stepwell.envs.web.webarena.locators import (
    ArrowNode,
    CallNode,
    ConstantNode,
    ItemNode,
    MemberNode,
    NameNode,
    Node,
    OperatorNode,
    parse_locator,
)
from stepwell.envs.web.webarena.rendered_text import render_text


class _MissingValueError(Exception):
    """A property of nothing was asked for: the page is not the one that the task expects."""


class _TextNode:
    """Text between tags, as a node of its own."""

    def __init__(self, text: str) -> None:
        self.text = text


def read_html_value(html: str, locator: str) -> str:
    """The value of `locator` on the page `html`, as text; empty if the page does not have it."""
    try:
        value = evaluate_node(parse_locator(locator), {"document": parse_html(html)})
    except _MissingValueError:
        return ""
    return str(value)


def parse_html(html: str) -> Any:
    """The tree of a page."""
    try:
        import lxml.html
    except ImportError as error:
        raise ConfigError("reading pages needs lxml: pip install 'stepwell[webarena]'") from error
    parser = lxml.html.HTMLParser(encoding="utf-8")
    return lxml.html.document_fromstring(html.encode() or b"<html></html>", parser=parser)


def select_elements(root: Any, selector: str) -> list[Any]:
    """The elements under `root` that a CSS selector matches, in the order of the page."""
    try:
        from lxml.cssselect import CSSSelector
    except ImportError as error:
        raise ConfigError("CSS selectors need cssselect: pip install 'stepwell[webarena]'") from error
    try:
        find = CSSSelector(_close_brackets(selector), translator="html")
    except Exception as error:
        raise InputError(f"cannot read the selector {selector!r}: {error}") from error
    return [element for element in find(root) if element is not root]


def evaluate_node(node: Node, names: Mapping[str, Any]) -> Any:
    """The value of a tree, where `names` says what its names stand for."""
    match node:
        case ConstantNode(value):
            return value
        case NameNode(name):
            if name not in names:
                raise InputError(f"unknown name {name!r} in a locator; use {' or '.join(names)}")
            return names[name]
        case OperatorNode("||", left, right):
            return evaluate_node(left, names) or evaluate_node(right, names)
        case OperatorNode(_, left, right):
            return f"{evaluate_node(left, names)}{evaluate_node(right, names)}"
        case ItemNode(target, index):
            items = evaluate_node(target, names)
            return items[index] if isinstance(items, list) and index < len(items) else None
        case MemberNode(target, name, optional):
            return _read_member(evaluate_node(target, names), name, optional)
        case CallNode(target, name, arguments, optional):
            return _call_method(evaluate_node(target, names), name, arguments, optional, names)
        case ArrowNode():
            raise InputError("a function stands only inside map(…)")


def _read_member(target: Any, name: str, optional: bool) -> Any:
    if target is None:
        if optional:
            return None
        raise _MissingValueError(name)
    if isinstance(target, _TextNode):
        return target.text if name in ("textContent", "nodeValue") else None
    if isinstance(target, (list, str)):
        return len(target) if name == "length" else None
    if name not in _MEMBERS:
        raise InputError(f"without a browser, a locator cannot read {name!r}; it can {', '.join(_MEMBERS)}")
    return _MEMBERS[name](target)


def _call_method(
    target: Any, name: str, arguments: tuple[Node, ...], optional: bool, names: Mapping[str, Any]
) -> Any:
    if target is None:
        if optional:
            return None
        raise _MissingValueError(name)
    if name == "map" and isinstance(target, list) and len(arguments) == 1:
        arrow = arguments[0]
        if not isinstance(arrow, ArrowNode):
            raise InputError("map takes a function: map(e => …)")
        return [evaluate_node(arrow.body, {**names, arrow.parameter: item}) for item in target]
    values = [evaluate_node(argument, names) for argument in arguments]
    if name == "toString":
        return str(target).lower() if isinstance(target, bool) else str(target)
    if name == "join" and isinstance(target, list):
        sign = str(values[0]) if values else ","
        return sign.join("" if item is None else str(item) for item in target)
    if isinstance(target, str) and name in _TEXT_METHODS:
        return _TEXT_METHODS[name](target)
    if name not in _METHODS or len(values) != 1 or isinstance(target, (list, str, bool, int)):
        raise InputError(f"without a browser, a locator cannot call {name!r}; it can {', '.join(_METHODS)}")
    return _METHODS[name](target, str(values[0]))


def read_value(element: Any) -> str | None:
    """The value of a form field as written in the HTML; None for other elements."""
    if element.tag == "textarea":
        return str(element.text_content()).removeprefix("\n")
    if element.tag == "select":
        options = list(element.iter("option"))
        index = read_selected_index(element)
        return None if index is None or index < 0 else _read_option(options[index])
    if element.tag == "option":
        return _read_option(element)
    if element.tag == "input":
        default = "on" if element.get("type", "").lower() in ("checkbox", "radio") else ""
        return str(element.get("value", default))
    return element.get("value") if element.tag in ("button", "li", "param") else None


def read_selected_index(element: Any) -> int | None:
    """The number of the selected option; -1 if there is none, None if this is no select."""
    if element.tag != "select":
        return None
    options = list(element.iter("option"))
    chosen = [index for index, option in enumerate(options) if option.get("selected") is not None]
    if chosen:
        return chosen[0] if element.get("multiple") is not None else chosen[-1]
    return 0 if options and element.get("multiple") is None else -1


def _read_option(option: Any) -> str:
    text = " ".join(str(option.text_content()).split())
    return str(option.get("value", text))


def _read_checked(element: Any) -> bool | None:
    return element.get("checked") is not None if element.tag == "input" else None


def _list_nodes(element: Any) -> list[Any]:
    """Children of an element in order, texts included."""
    nodes: list[Any] = [_TextNode(element.text)] if element.text else []
    for child in element:
        nodes.append(child)
        if child.tail:
            nodes.append(_TextNode(child.tail))
    return nodes


def _list_children(element: Any) -> list[Any]:
    return [child for child in element if isinstance(child.tag, str)]


def _close_brackets(selector: str) -> str:
    is_open, quote = False, ""
    for char in selector:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[]":
            is_open = char == "["
    return selector + quote + ("]" if is_open else "")


def _first(items: list[Any]) -> Any:
    return items[0] if items else None


_MEMBERS: dict[str, Callable[[Any], Any]] = {
    "outerText": render_text,
    "innerText": render_text,
    "textContent": lambda element: str(element.text_content()),
    "value": read_value,
    "selectedIndex": read_selected_index,
    "checked": _read_checked,
    "id": lambda element: element.get("id", ""),
    "className": lambda element: element.get("class", ""),
    "title": lambda element: element.get("title", ""),
    "children": _list_children,
    "childNodes": _list_nodes,
    "firstElementChild": lambda element: _first(_list_children(element)),
    "lastElementChild": lambda element: _first(_list_children(element)[::-1]),
    "firstChild": lambda element: _first(_list_nodes(element)),
    "lastChild": lambda element: _first(_list_nodes(element)[::-1]),
    "parentElement": lambda element: element.getparent(),
    "nextElementSibling": lambda element: element.getnext(),
    "previousElementSibling": lambda element: element.getprevious(),
}
_METHODS: dict[str, Callable[[Any, str], Any]] = {
    "querySelector": lambda element, selector: _first(select_elements(element, selector)),
    "querySelectorAll": select_elements,
    "getAttribute": lambda element, name: element.get(name),
    "hasAttribute": lambda element, name: element.get(name) is not None,
}
_TEXT_METHODS: dict[str, Callable[[str], str]] = {
    "trim": str.strip,
    "toLowerCase": str.lower,
    "toUpperCase": str.upper,
}
