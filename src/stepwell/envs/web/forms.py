"""Forms of a tree without scripts: which form a control belongs to, and what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

from stepwell.envs.web.controls import NO_TEXT_TYPES, read_kind
from stepwell.envs.web.snapshot import Node, list_options, read_option_value

MULTIPART = "multipart/form-data"
_BOUNDARY = "----StepwellFormBoundary"


class FormRequest(NamedTuple):
    """What a submitted form asks for."""

    method: str
    url: str
    body: bytes
    content_type: str


def walk_nodes(node: Node) -> Iterator[Node]:
    """A node and all below it, in document order."""
    stack = [node]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(child for child in reversed(item[2]) if not isinstance(child, str))


def find_form(body: Node, control: Node) -> Node | None:
    """The form of a control: the one it names, or else the one around it."""
    if owner := control[1].get("form"):
        return next((n for n in walk_nodes(body) if n[0] == "form" and n[1].get("id") == owner), None)
    found: Node | None = None
    stack: list[tuple[Node, Node | None]] = [(body, None)]
    while stack:
        node, form = stack.pop()
        if node is control:
            found = form
            break
        inner = node if node[0] == "form" else form
        stack.extend((child, inner) for child in node[2] if not isinstance(child, str))
    return found


def list_controls(body: Node, form: Node) -> list[Node]:
    """The controls of a form in document order, those outside that name it too."""
    inside = [node for node in walk_nodes(form) if node[0] in _CONTROLS and "form" not in node[1]]
    if not (own := form[1].get("id")):
        return inside
    named = {id(node) for node in walk_nodes(body) if node[0] in _CONTROLS and node[1].get("form") == own}
    if not named:
        return inside
    kept = named | {id(node) for node in inside}
    return [node for node in walk_nodes(body) if id(node) in kept]


_CONTROLS = ("input", "select", "textarea", "button")


def is_submit_button(node: Node) -> bool:
    """Whether a click on it sends the form."""
    return node[0] in ("input", "button") and read_kind(node) in ("submit", "image")


def find_default_button(controls: list[Node]) -> Node | None:
    """The button that Enter in a field stands for."""
    return next((node for node in controls if is_submit_button(node)), None)


def submits_on_enter(controls: list[Node]) -> bool:
    """Whether Enter in a field sends the form: it has an enabled button, or no button and one field."""
    button = find_default_button(controls)
    if button is not None:
        return "disabled" not in button[1]
    fields = [node for node in controls if node[0] == "input" and read_kind(node) not in NO_TEXT_TYPES]
    return len(fields) <= 1


def make_form_request(body: Node, form: Node, button: Node | None, base: str) -> FormRequest:
    """What the browser asks for when this form is sent with this button; `url` is not yet absolute."""
    attributes = form[1] if button is None else {**form[1], **_override_form(button)}
    pairs = list(_list_pairs(list_controls(body, form), button))
    action = attributes.get("action", "") or base
    method = attributes.get("method", "get").lower()
    if method != "post":
        parts = urlsplit(action)
        return FormRequest("GET", urlunsplit(parts._replace(query=urlencode(pairs), fragment="")), b"", "")
    if attributes.get("enctype", "").lower() == MULTIPART:
        kind = f"{MULTIPART}; boundary={_BOUNDARY}"
        return FormRequest("POST", action, _write_multipart(pairs), kind)
    return FormRequest("POST", action, urlencode(pairs).encode(), "application/x-www-form-urlencoded")


def _override_form(button: Node) -> dict[str, str]:
    names = {"formaction": "action", "formmethod": "method", "formenctype": "enctype"}
    return {ours: button[1][theirs] for theirs, ours in names.items() if button[1].get(theirs)}


def _list_pairs(controls: list[Node], button: Node | None) -> Iterator[tuple[str, str]]:
    for node in controls:
        tag, attributes, kind = node[0], node[1], read_kind(node)
        name = attributes.get("name", "")
        if not name or "disabled" in attributes or kind == "file":
            continue
        if tag == "select":
            for option in list_options(node):
                if "selected" in option[1] and "disabled" not in option[1]:
                    yield name, read_option_value(option)
        elif kind in ("checkbox", "radio"):
            if "checked" in attributes:
                yield name, attributes.get("value", "on")
        elif tag == "button" or kind in ("submit", "button", "reset", "image"):
            if node is button:
                yield name, attributes.get("value", "Submit" if tag == "input" else "")
        else:
            value = attributes.get("value", "")
            yield name, "\r\n".join(value.splitlines() + [""] * value.endswith("\n"))


def _write_multipart(pairs: list[tuple[str, str]]) -> bytes:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in pairs
    ]
    return ("".join(parts) + f"--{_BOUNDARY}--\r\n").encode()


def find_missing_value(controls: list[Node]) -> str | None:
    """The name of the first required control without a value; None if all have one."""
    for node in controls:
        attributes = node[1]
        if "required" not in attributes or "disabled" in attributes:
            continue
        kind = read_kind(node)
        if kind == "checkbox":
            is_filled = "checked" in attributes
        elif kind == "radio":
            group = [other for other in controls if other[1].get("name") == attributes.get("name")]
            is_filled = any("checked" in other[1] for other in group)
        elif node[0] == "select":
            chosen = [option for option in list_options(node) if "selected" in option[1]]
            is_filled = any(option[1].get("value", "x") for option in chosen)
        else:
            is_filled = bool(attributes.get("value"))
        if not is_filled:
            return str(attributes.get("name", "")) or kind
    return None
