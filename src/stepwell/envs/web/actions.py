"""The fourteen actions of a web agent: what they are, how a reply is read, how an action is written.

    # Element: the search box at the top
    # Note: the cart holds 2 items
    do(action="Search", argument="red lamp", element="5")

| name | element | argument |
|---|---|---|
| click, hover | yes | |
| type | yes | the text, which replaces what the field holds |
| search | yes | the text; Enter follows |
| press | | a key or a combination: `Enter`, `Control+a` |
| scroll | | `up` or `down` |
| select_dropdown_option | yes | the label of the option |
| new_tab, close_tab, go_back, go_forward | | |
| tab_focus | | the index of the tab, from 0 |
| goto | | the address |
| exit | | the answer; written `exit(message="...")` |

A reply holds exactly one call, at the start of a line. Lines that start with `# Element:` or `# Note:` are
kept with the action; other lines are ignored. The call is read without Python's own parser: a reply is
hostile text.

Other spellings are read as well: spaces for underscores, any case, `Press Enter`, `Scroll Down`,
`Switch Tab`, `Go Backward`, `go_backward()`, `go_forward()`. `print_action` always writes the first form, and
`parse_action(print_action(action)) == action` for every action whose comments are single lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.core import InputError

ACTION_NAMES = (
    "click",
    "hover",
    "type",
    "search",
    "press",
    "scroll",
    "select_dropdown_option",
    "new_tab",
    "tab_focus",
    "close_tab",
    "goto",
    "go_back",
    "go_forward",
    "exit",
)
NEED_ELEMENT = frozenset({"click", "hover", "type", "search", "select_dropdown_option"})
TAKE_ARGUMENT = frozenset(
    {"type", "search", "press", "scroll", "select_dropdown_option", "tab_focus", "goto", "exit"}
)
NEED_ARGUMENT = TAKE_ARGUMENT - {"type", "search", "exit"}  # these may be empty
DIRECTIONS = ("up", "down")
MAX_REPLY = 100_000  # characters; a longer reply is refused before it is searched

_OTHER_NAMES = {
    "switch_tab": "tab_focus",
    "switch_page": "tab_focus",
    "page_focus": "tab_focus",
    "page_close": "close_tab",
    "select": "select_dropdown_option",
    "select_option": "select_dropdown_option",
    "go_backward": "go_back",
}
_CALL = re.compile(r"^[ \t]*(do|exit|go_backward|go_forward)[ \t]*\(", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#[ \t]*(element|note)[ \t]*:(.*)$", re.MULTILINE | re.IGNORECASE)
_KEY = re.compile(r"\s*([A-Za-z_]+)\s*=\s*")
_VALUE = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(-?\d+)|(None))\s*""", re.DOTALL)
_JOINED = re.compile(r"\s*(press|scroll)[\s_]+(\S.*?)\s*", re.IGNORECASE)
_CLOSE = re.compile(r"\s*\)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "\n": ""}


class ActionError(InputError):
    """A reply is not one of the fourteen actions; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class WebAction:
    """One action with the comments that its author wrote; an impossible one cannot be made.

    >>> WebAction("click", "12", element_comment="the Buy button")
    WebAction(name='click', element='12', argument='', element_comment='the Buy button', note='')
    """

    name: str
    element: str = ""
    argument: str = ""
    element_comment: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.name not in ACTION_NAMES:
            raise ActionError(f"unknown action {self.name!r}; the actions are {', '.join(ACTION_NAMES)}")
        if (self.name in NEED_ELEMENT) != bool(self.element):
            needs = "needs an element" if self.name in NEED_ELEMENT else "takes no element"
            raise ActionError(f"{self.name} {needs}, got {self.element!r}")
        if self.argument and self.name not in TAKE_ARGUMENT:
            raise ActionError(f"{self.name} takes no argument, got {self.argument!r}")
        if not self.argument and self.name in NEED_ARGUMENT:
            raise ActionError(f"{self.name} needs an argument")
        if self.name == "scroll" and self.argument not in DIRECTIONS:
            raise ActionError(f"scroll goes up or down, not {self.argument!r}")
        if self.name == "tab_focus" and not re.fullmatch(r"[0-9]{1,4}", self.argument):
            raise ActionError(f"tab_focus takes the index of a tab, from 0, not {self.argument!r}")


def parse_action(text: str) -> WebAction:
    """Read the one action of a reply; `ActionError` says what is wrong with it.

    >>> parse_action('do(action="Scroll Down")')
    WebAction(name='scroll', element='', argument='down', element_comment='', note='')
    """
    if len(text) > MAX_REPLY:
        raise ActionError(f"the reply has {len(text):,} characters; at most {MAX_REPLY:,} are read")
    calls, rest = _split_calls(text)
    if len(calls) != 1:
        found = "no action" if not calls else f"{len(calls)} actions"
        raise ActionError(f'{found} in the reply; write one line such as do(action="Click", element="12")')
    function, values = calls[0]
    name, element, argument = _read_call(function, values)
    comments = {kind.lower(): " ".join(words.split()) for kind, words in _COMMENT.findall(rest)}
    return WebAction(name, element, argument, comments.get("element", ""), comments.get("note", ""))


def print_action(action: WebAction) -> str:
    """Write an action as an agent writes it, with its comments.

    >>> print(print_action(WebAction("exit", argument="42", note="the total is 42")))
    # Note: the total is 42
    exit(message="42")
    """
    lines = []
    for label, comment in (("Element", action.element_comment), ("Note", action.note)):
        if words := " ".join(comment.split()):
            lines.append(f"# {label}: {words}")
    if action.name == "exit":
        lines.append(f"exit(message={_quote_text(action.argument)})")
        return "\n".join(lines)
    parts = [f'action="{action.name.capitalize()}"']
    if action.name in TAKE_ARGUMENT:
        parts.append(f"argument={_quote_text(action.argument)}")
    if action.element:
        parts.append(f"element={_quote_text(action.element)}")
    lines.append(f"do({', '.join(parts)})")
    return "\n".join(lines)


def _split_calls(text: str) -> tuple[list[tuple[str, dict[str, str]]], str]:
    """The calls of a reply, and the reply without them: comment marks inside quoted text do not count."""
    calls, rest, position = [], [], 0
    while (found := _CALL.search(text, position)) is not None:
        values, end = _read_values(text, found.end())
        calls.append((found.group(1), values))
        rest.append(text[position : found.start()])
        position = end
    rest.append(text[position:])
    return calls, "\n".join(rest)


def _read_values(text: str, position: int) -> tuple[dict[str, str], int]:
    """The named values of a call whose bracket opened before `position`, and where it closed."""
    values: dict[str, str] = {}
    while True:
        key = _KEY.match(text, position)
        start = position if key is None else key.end()
        value = _VALUE.match(text, start)
        if value is not None:
            name = "" if key is None else key.group(1).lower()
            if name in values:
                raise ActionError(f"{name or 'an unnamed value'} is given twice")
            values[name] = _read_value(value)
            position = value.end()
            if text.startswith(",", position):
                position += 1
                continue
        elif key is not None:
            raise ActionError(f"the value of {key.group(1)} is not a quoted text")
        close = _CLOSE.match(text, position)
        if close is None:
            raise ActionError(
                f"a comma, a quoted text or ) is expected before {text[position : position + 20]!r}"
            )
        return values, close.end()


def _read_value(found: re.Match[str]) -> str:
    double, single, number, none = found.groups()
    if none is not None:
        return ""
    if number is not None:
        return number
    return _ESCAPE.sub(_read_escape, double if double is not None else single)


def _read_escape(found: re.Match[str]) -> str:
    code = found.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, found.group(0))


def _quote_text(text: str) -> str:
    for plain, code in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, code)
    return f'"{text}"'


def _read_call(function: str, values: dict[str, str]) -> tuple[str, str, str]:
    """Name, element and argument of a call."""
    if function == "exit":
        _refuse_other_keys(values, {"message", ""})
        return "exit", "", "".join(values.values())
    if function != "do":
        _refuse_other_keys(values, set())
        return _OTHER_NAMES.get(function, function), "", ""
    _refuse_other_keys(values, {"action", "argument", "element"})
    if "action" not in values:
        raise ActionError('do(...) needs action="..."')
    argument, element = values.get("argument", ""), values.get("element", "").strip()
    joined = _JOINED.fullmatch(values["action"])
    if joined is not None and not argument:  # "Press Enter", "Scroll Down"
        name, argument = joined.group(1).lower(), joined.group(2)
    else:
        name = re.sub(r"[\s_]+", "_", values["action"].strip().lower())
    name = _OTHER_NAMES.get(name, name)
    return name, element, argument.strip().lower() if name == "scroll" else argument


def _refuse_other_keys(values: dict[str, str], known: set[str]) -> None:
    if others := set(values) - known:
        raise ActionError(f"unknown argument {sorted(others)[0] or 'without a name'} in the call")


def list_actions() -> Iterator[str]:
    """One line for each action, as an agent writes it, for guides."""
    for name in ACTION_NAMES[:-1]:
        parts = [f'action="{name.capitalize()}"']
        if name in TAKE_ARGUMENT:
            parts.append('argument="..."')
        if name in NEED_ELEMENT:
            parts.append('element="12"')
        yield f"do({', '.join(parts)})"
    yield 'exit(message="...")'
