"""A simplified page in fewer tokens, for models to which every tag is many.

    <a id=5>Red lamp</a> <input id=3 name="q"><select id=6><option selected>new<option>old</select>
    [5]Red lamp [3 name="q"][6]*new|old

Roles, and states that are false, are left out: `<li id=2 role="tab" aria-expanded="false">` is `[2]`.

Brackets stand only where an element with an id begins: those of the page itself become parentheses, so that
no text of a page can look like an element. Ids and the order of lines are those of the simplified page.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)(\w+)((?:[^<>\"]|\"[^\"]*\")*)>")
_ID = re.compile(r" id=(\d+)")
_LEFT_OUT = re.compile(r' (?:role="[^"]*"|aria-[\w-]+="false")')
_PARENTHESES = str.maketrans("[]", "()")


def shorten_page(html: str) -> str:
    """The short form of simplified HTML.

    >>> shorten_page('<h1>Cart [1]\\n<button id=2>Go</button> <input id=3 value="a">')
    'Cart (1)\\n[2]Go [3 value="a"]'
    """
    return _TAG.sub(_shorten_tag, html.translate(_PARENTHESES))


def _shorten_tag(match: re.Match[str]) -> str:
    is_end, name, attributes = match.groups()
    if is_end:
        return ""
    if found := _ID.search(attributes):
        rest = _LEFT_OUT.sub("", attributes.replace(found[0], "", 1))
        return f"[{found[1]}{rest}]"
    if name == "option":
        return "*" if "selected" in attributes else "|"
    return ""
