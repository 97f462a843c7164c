"""Foreign text made plain: what controls, hides or reorders text becomes a visible sign."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e"  # controls, soft hyphens, marks of direction
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # of no width, line separators, overrides of direction
    "\ud800-\udfff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"  # half characters, annotations, tags
)


def show_controls(text: str) -> str:
    """Text in which no character can hide or reorder what is read; line ends and tabs stay."""
    return _HIDDEN.sub(_name_char, text)


def _name_char(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"
