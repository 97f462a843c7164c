"""How controls, links and buttons are written in a simplified page (rules 4 and 5 of `simplify.py`)."""

from __future__ import annotations

from typing import Any

from stepwell.envs.web.snapshot import Node, list_options, read_text

MAX_SHOWN_OPTIONS = 30
BUTTON_TYPES = frozenset({"submit", "button", "reset", "image"})
CONTROL_TAGS = frozenset({"input", "select", "textarea"})
TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_FLAGS = ("checked", "disabled", "readonly", "multiple")
QUOTE_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def write_control(node: Node, number: int, has_label: bool) -> str:
    """The start tag of a control with its id, and all of a select."""
    tag, attributes = node[0], node[1]
    shown = [f"<{tag} id={number}"]
    kind = attributes.get("type", "").lower()
    if tag == "input" and kind not in ("", "text"):
        shown.append(_write_attribute("type", kind))
    has_name = has_label
    for name in ("aria-label", "placeholder", "title"):
        if words := attributes.get(name):
            shown.append(_write_attribute(name, words))
            has_name = True
    if not has_name and kind not in BUTTON_TYPES and attributes.get("name"):
        shown.append(_write_attribute("name", attributes["name"]))
    if tag == "select":
        return " ".join(shown) + _write_flags(attributes) + ">" + _write_options(node) + "</select>"
    if value := _read_value(node):
        shown.append(_write_attribute("value", value))
    return " ".join(shown) + _write_flags(attributes) + ">"


def _write_options(node: Node) -> str:
    options = list_options(node)
    chosen = [option for option in options[MAX_SHOWN_OPTIONS:] if "selected" in option[1]]
    parts = [
        f"<option{' selected' * ('selected' in option[1])}>{_read_label(option).translate(TEXT_ESCAPES)}"
        for option in [*options[:MAX_SHOWN_OPTIONS], *chosen]
    ]
    left = len(options) - len(parts)
    return "".join(parts) + (f"<!-- {left} more options -->" if left else "")


def _write_attribute(name: str, words: str) -> str:
    return f'{name}="{" ".join(words.split()).translate(QUOTE_ESCAPES)}"'


def _write_flags(attributes: dict[str, Any]) -> str:
    return "".join(f" {name}" for name in _FLAGS if name in attributes)


def write_state(node: Node) -> str:
    """The attributes of a link, a button or an element with a role, as shown in its tag."""
    attributes = node[1]
    shown = ""
    for name in ("role", "aria-label", "aria-expanded", "aria-selected", "aria-checked", "title"):
        if words := attributes.get(name):
            shown += " " + _write_attribute(name, words)
    return shown + " disabled" * ("disabled" in attributes)


def _read_value(node: Node) -> str:
    attributes = node[1]
    kind = attributes.get("type", "").lower()
    if kind in ("checkbox", "radio"):
        return ""
    value: str = attributes.get("value", "")
    if not value and kind == "submit":
        return "Submit"
    return "*" * len(value) if kind == "password" else value


def read_button_value(node: Node) -> str:
    """The words on an input that is a button; "" for other elements."""
    is_button = node[0] == "input" and node[1].get("type", "").lower() in BUTTON_TYPES
    return _read_value(node) if is_button else ""


def _read_label(option: Node) -> str:
    return " ".join(option[1].get("label", "").split()) or read_text(option)


def name_element(node: Node, label: str) -> str:
    """The text of an element that shows none: its label, or what else tells what it is."""
    attributes = node[1]
    is_button = attributes.get("type", "").lower() in BUTTON_TYPES
    choices = [_read_value(node) if is_button else "", label]
    choices += [attributes.get(name) for name in ("aria-label", "placeholder", "title", "alt")]
    choices += [attributes.get("name"), _read_value(node)]
    return " ".join(next((words for words in choices if words), "").split())


def list_attributes(node: Node) -> dict[str, str]:
    """The attributes that a view keeps of an element."""
    attributes = node[1]
    found = {
        name: str(attributes[name])
        for name in ("href", "type", "name", "placeholder", "role", "title", "aria-label", "aria-expanded")
        if attributes.get(name)
    }
    found |= {name: "true" for name in _FLAGS if name in attributes}
    if node[0] == "select":
        options = list_options(node)
        found["options"] = "\n".join(_read_label(option) for option in options)
        found["value"] = next((_read_label(option) for option in options if "selected" in option[1]), "")
    elif node[0] in CONTROL_TAGS or "value" in attributes:
        found["value"] = str(attributes.get("value", ""))
    return found
