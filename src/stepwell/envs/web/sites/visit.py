"""One request to a site, as its pages see it: database, person, query, form; and what a page answers.

`state` is the one table that is not part of a site's content: who is logged in where, and the line that
the next page shows. So a log-in never counts as a change that a task forbids.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from stepwell.envs.web.sites.markup import Html

EPISODE_HEADER = "x-stepwell-episode"
MAX_TEXT = 2000
_WRITES = re.compile(r"\s*(?:INSERT(?: OR \w+)? INTO|UPDATE(?: OR \w+)?|DELETE FROM) (\w+)")


@dataclass(frozen=True, slots=True)
class Redirect:
    """The answer to a form: where to look next, and a line to show there."""

    to: str
    notice: str = ""


class PageError(Exception):
    """A request that cannot be answered: 400 bad input, 403 not yours, 404 not there."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Visit:
    """A request: `visitor` is "" within an episode, `port` is "" or ":8080".

    `written` are the tables that it wrote to; the judge looks at these alone.
    """

    db: sqlite3.Connection
    site: str
    path: str
    rows_per_page: int
    today: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    port: str = ""
    visitor: str = ""
    written: set[str] = field(default_factory=set)

    @property
    def user(self) -> str:
        """Who is logged in here."""
        return str(self.find_value("SELECT value FROM state WHERE key = ?", f"user:{self.site}") or "")

    def log_in(self, user: str) -> None:
        """Log a person in, or nobody."""
        set_state(self.db, f"user:{self.site}", user)

    def find_all(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows."""
        return self.db.execute(sql, values).fetchall()

    def find_row(self, sql: str, *values: object) -> sqlite3.Row:
        """One row, or a page that says there is none."""
        found: sqlite3.Row | None = self.db.execute(sql, values).fetchone()
        if found is None:
            raise PageError(404, "There is nothing here.")
        return found

    def find_value(self, sql: str, *values: object) -> Any:
        """The first value of the first row, or None."""
        found = self.db.execute(sql, values).fetchone()
        return found[0] if found else None

    def change(self, sql: str, *values: object) -> int:
        """Run a statement that writes; the number of the new row, if there is one."""
        self.written.add(find_written_table(sql))
        return self.db.execute(sql, values).lastrowid or 0

    def read_text(self, name: str, *, required: bool = True) -> str:
        """A text of the form, with outer blanks gone."""
        text = self.form.get(name, "").strip()
        if required and not text:
            raise PageError(400, f"Please fill in {name}.")
        if len(text) > MAX_TEXT:
            raise PageError(400, f"{name} is too long: at most {MAX_TEXT} characters.")
        return text

    def read_number(self, name: str, low: int, high: int) -> int:
        """A whole number of the form."""
        text = self.read_text(name)
        if not (text.isascii() and text.isdigit()) or not low <= int(text[:12]) <= high:
            raise PageError(400, f"{name} must be a number from {low} to {high}.")
        return int(text)

    def read_choice(self, name: str, options: Mapping[str, Any] | tuple[str, ...] | list[str]) -> str:
        """A value of the form that must be one of these."""
        text = self.form.get(name, "")
        if text not in options:
            raise PageError(400, f"{name} must be one of: {', '.join(options)}.")
        return text


@lru_cache(maxsize=1024)
def find_written_table(sql: str) -> str:
    """The table that a statement writes to.

    >>> find_written_table("INSERT OR IGNORE INTO wishes VALUES (?, ?)")
    'wishes'
    """
    found = _WRITES.match(sql)
    assert found, f"an INSERT, UPDATE or DELETE is needed, not {sql!r}"
    return found[1]


def set_state(db: sqlite3.Connection, key: str, value: str) -> None:
    """Write a value of the session, which is not content; "" clears it."""
    db.execute("DELETE FROM state WHERE key = ?", (key,))
    if value:
        db.execute("INSERT INTO state VALUES (?, ?)", (key, value))


def take_notice(db: sqlite3.Connection) -> str:
    """The line that the last form left, once."""
    found = db.execute("SELECT value FROM state WHERE key = 'notice'").fetchone()
    if found:
        set_state(db, "notice", "")
    return str(found[0]) if found else ""


@dataclass(frozen=True, slots=True)
class PageBody:
    """A page without what all pages share: title and blocks."""

    title: str
    blocks: tuple[Html | None, ...]


Answer = PageBody | Redirect


@dataclass(frozen=True, slots=True)
class PageRoute:
    """What answers a path. `private`: only for who is logged in, others are sent to the log-in page."""

    method: str
    path: str
    answer: Callable[..., Answer]
    private: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """One site: its name is its host (`NAME.localhost`)."""

    name: str
    title: str
    links: tuple[tuple[str, str], ...]
    routes: tuple[PageRoute, ...]


def page(title: str, *blocks: Html | None) -> PageBody:
    """A page."""
    return PageBody(title, blocks)
