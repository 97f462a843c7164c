"""The state of a shopper as one value, so that the server is stateless.

A view is part of every call and of every URL of the pages for people. Two environments can share a server, a
lost answer can be requested again, and copying an environment needs no copy on the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from stepwell.core import JSON, InputError

MAX_QUERY_CHARS = 200
MAX_ACTION_CHARS = 10_000
_SHOWN_CHARS = 60
_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)


class Page(StrEnum):
    """The kinds of pages."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    DETAIL = "detail"
    BOUGHT = "bought"


class ShopAction(NamedTuple):
    """A parsed action."""

    verb: str
    what: str


@dataclass(frozen=True, slots=True)
class View:
    """A page, and how it was reached. `number` counts pages of results from 0; `detail` names a sub-page;
    `chosen` are the values chosen for `item`; `note` is why the last action did nothing."""

    page: Page = Page.SEARCH
    query: str = ""
    number: int = 0
    item: str = ""
    detail: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, JSON]:
        """The view as plain data."""
        return {
            "page": self.page.value,
            "query": self.query,
            "number": self.number,
            "item": self.item,
            "detail": self.detail,
            "chosen": [list(pair) for pair in self.chosen],
            "note": self.note,
        }

    @classmethod
    def from_json(cls, value: Any) -> View:
        """The reverse of `to_json`; invalid data is an `InputError`."""
        try:
            texts = {name: value[name] for name in ("query", "item", "detail", "note")}
            page, number = Page(value["page"]), value["number"]
            chosen = tuple((name, picked) for name, picked in value["chosen"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"a view of shop lacks or misspells a field: {error!r}") from error
        said = [*texts.values(), *(part for pair in chosen for part in pair)]
        if not all(isinstance(text, str) for text in said) or type(number) is not int or number < 0:
            raise InputError("a view of shop holds texts, and the number of a page")
        query, note = (clean_text(texts[name], MAX_QUERY_CHARS) for name in ("query", "note"))
        return cls(page, query, number, texts["item"], texts["detail"], chosen, note)


def read_action(text: str) -> ShopAction | None:
    """Parse an action; None if the text is not an action.

    >>> read_action("Click[ Buy Now ]")
    ShopAction(verb='click', what='Buy Now')
    """
    match = _ACTION.fullmatch(text) if len(text) <= MAX_ACTION_CHARS else None
    return ShopAction(match[1].lower(), clean_text(match[2], MAX_QUERY_CHARS)) if match else None


def clean_text(text: str, max_chars: int) -> str:
    """A text on one line, encodable, with at most `max_chars` characters."""
    plain = text[: 4 * max_chars].encode(errors="replace").decode()
    return " ".join("".join(c if c.isprintable() else " " for c in plain).split())[:max_chars]


def quote_text(text: str) -> str:
    """A shortened text for a note."""
    short = clean_text(text, _SHOWN_CHARS + 1)
    return f"'{short[:_SHOWN_CHARS]}…'" if len(short) > _SHOWN_CHARS else f"'{short}'"


def to_mapping(chosen: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Chosen values by option name."""
    return dict(chosen)
