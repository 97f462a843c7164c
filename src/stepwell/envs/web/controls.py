"""What can be done with an element, decided from the tree: the same answer under both drivers.

`refuse_action` says in a few words why an action cannot be done, or "". The words are for the agent.
"""

from __future__ import annotations

import re

from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import AllowedHosts, resolve_address
from stepwell.envs.web.control_markup import BUTTON_TYPES
from stepwell.envs.web.simplify import SimplePage
from stepwell.envs.web.snapshot import Node, list_options, read_option_value, read_text

NO_TEXT_TYPES = BUTTON_TYPES | {"checkbox", "radio", "file", "hidden", "color", "range"}
_FORMATS = {
    "number": (re.compile(r"-?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?|"), "a number"),
    "date": (re.compile(r"\d{4}-\d{2}-\d{2}|"), "a date such as 2026-01-31"),
    "time": (re.compile(r"\d{2}:\d{2}(:\d{2})?|"), "a time such as 09:30"),
    "month": (re.compile(r"\d{4}-\d{2}|"), "a month such as 2026-01"),
    "week": (re.compile(r"\d{4}-W\d{2}|"), "a week such as 2026-W05"),
    "datetime-local": (
        re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?|"),
        "a moment such as 2026-01-31T09:30",
    ),
}


def read_kind(node: Node) -> str:
    """The type of a control in small letters; without one, an input is "text" and a button "submit"."""
    default = {"input": "text", "button": "submit"}.get(node[0], "")
    return str(node[1].get("type", "")).lower() or default


def takes_text(node: Node) -> bool:
    """Whether text can be typed into it."""
    if node[0] == "textarea":
        return True
    if node[0] == "input":
        return read_kind(node) not in NO_TEXT_TYPES
    return node[1].get("contenteditable", "false").lower() in ("", "true", "plaintext-only")


def find_option(select: Node, wanted: str) -> int:
    """The place of an option by its label, its value, or its label in any case; -1 if there is none."""
    options = list_options(select)
    labels = [" ".join(option[1].get("label", "").split()) or read_text(option) for option in options]
    wanted = " ".join(wanted.split())
    for texts, word in (
        (labels, wanted),
        ([read_option_value(option) for option in options], wanted),
        ([label.lower() for label in labels], wanted.lower()),
    ):
        if word in texts:
            return texts.index(word)
    return -1


def refuse_action(page: SimplePage, action: WebAction, allowed: AllowedHosts, base: str) -> str:
    """Why an action on an element cannot be done; "" if it can."""
    if not action.element:
        return ""
    node = page.nodes.get(action.element)
    if node is None:
        return f"there is no element {action.element} on this page"
    if "disabled" in node[1] and action.name != "hover":
        return f"element {action.element} is disabled"
    if action.name in ("type", "search"):
        return _refuse_text(node, action)
    if action.name == "select_dropdown_option":
        return _refuse_option(node, action)
    if action.name == "click" and node[0] == "a":
        return refuse_link(node, allowed, base)
    return ""


def refuse_link(node: Node, allowed: AllowedHosts, base: str) -> str:
    """Why a link must not be followed; "" if it may, or if it leads nowhere."""
    href = str(node[1].get("href", ""))
    if href.strip().lower().startswith(("javascript:", "mailto:", "tel:", "data:", "blob:")):
        return ""
    return refuse_address(resolve_address(href, base), href, allowed)


def refuse_address(url: str, written: str, allowed: AllowedHosts) -> str:
    """Why an address must not be opened; "" if it may."""
    if not url:
        return f"{written[:200]} is not an address of the web"
    if not allowed.allow_address(url):
        return f"the address {url[:200]} is not allowed here"
    return ""


def _refuse_text(node: Node, action: WebAction) -> str:
    if not takes_text(node):
        return f"element {action.element} takes no text"
    if "readonly" in node[1]:
        return f"element {action.element} is read-only"
    pattern, description = _FORMATS.get(read_kind(node), (None, ""))
    if pattern is not None and not pattern.fullmatch(action.argument):
        return f"element {action.element} takes {description}"
    return ""


def _refuse_option(node: Node, action: WebAction) -> str:
    if node[0] != "select":
        return f"element {action.element} is no dropdown menu"
    place = find_option(node, action.argument)
    if place < 0:
        return f"element {action.element} has no option {action.argument[:100]!r}"
    if "disabled" in list_options(node)[place][1]:
        return f"option {action.argument[:100]!r} is disabled"
    return ""
