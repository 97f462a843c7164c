"""One episode on the sites: a private snapshot, which exists only as far as it is needed.

    answer_request ─► kept? ─► yes: the answer; what it changed is done to the database later, if ever
                          └──► no: catch_up ─► answer_visit ─► keep

Invariants
* A reader of the database sees the effect of all requests so far.
* A connection comes from the host and goes back to it, rolled back to the seeded world.
* Who takes `db` may write to it: from then on nothing is answered from the cache, and the connection is not
  used again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.envs.web.exchange import SiteAnswer, SiteRequest
from stepwell.envs.web.sites.app import answer_visit
from stepwell.envs.web.sites.database import read_rows
from stepwell.envs.web.sites.visit import EPISODE_HEADER, set_state

if TYPE_CHECKING:
    from stepwell.envs.web.sites.host import SiteHost

LogIn = tuple[str, str]  # a site and a person


class SiteEpisode:
    """A private snapshot, selected by `headers`."""

    def __init__(self, host: SiteHost, name: str) -> None:
        self.host, self.name = host, name
        self.headers: Mapping[str, str] = {EPISODE_HEADER: name}  # sent with every request
        self._state = 0
        self._db: sqlite3.Connection | None = None
        self._behind: list[SiteRequest | LogIn] = []  # what the database has not seen yet
        self._written: set[str] = set()
        self._is_shared = False
        self._lock = threading.RLock()

    @property
    def db(self) -> sqlite3.Connection:
        """The database in its present state, to read or to change."""
        with self._lock:
            self._is_shared = True
            return self._catch_up()

    @property
    def state(self) -> int | None:
        """A number for the content of the database: equal numbers are equal contents; None if unknown."""
        return None if self._is_shared else self._state

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of this episode's database."""
        return [tuple(row) for row in self.db.execute(sql, values)]

    def log_in(self, site: str, user: str) -> None:
        """Start with a person logged in."""
        with self._lock:
            kept = self.host.answers.find(self._state, (site, user))
            if kept is None:
                kept = self.host.answers.keep(self._state, (site, user), None, is_changed=True)
            self._state = kept.state
            self._behind.append((site, user))
            if self._is_shared:
                self._catch_up()

    def answer_request(self, request: SiteRequest) -> SiteAnswer:
        """The answer; the snapshot is as the request left it."""
        with self._lock:
            kept = None if self._is_shared else self.host.answers.find(self._state, request)
            if kept is None or kept.answer is None:
                return self._answer_afresh(request)
            if kept.state != self._state:
                self._behind.append(request)
                self._state = kept.state
            return kept.answer

    def _answer_afresh(self, request: SiteRequest) -> SiteAnswer:
        db = self._catch_up()
        before = db.total_changes
        answer = answer_visit(request, db, self.host, written=self._written)
        if not self._is_shared:
            is_changed = db.total_changes != before
            self._state = self.host.answers.keep(self._state, request, answer, is_changed=is_changed).state
        return answer

    def list_written_tables(self) -> set[str] | None:
        """The tables that may differ from the seeded world; None if nobody knows."""
        with self._lock:
            self._catch_up()
            return None if self._is_shared else set(self._written)

    def read_table(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table as they lie."""
        with self._lock:
            return read_rows(self._catch_up(), table)

    def close(self) -> None:
        """Forget the snapshot."""
        self.host.close_episode(self.name)

    def release_database(self) -> None:
        """Give the connection back; the episode is over."""
        with self._lock:
            db, self._db = self._db, None
            if db is not None:
                self.host.give_back_copy(db, is_clean=not self._is_shared)

    def _catch_up(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self.host.take_copy()
        for item in self._behind:
            if isinstance(item, SiteRequest):
                answer_visit(item, self._db, self.host, written=self._written)
            else:
                set_state(self._db, f"user:{item[0]}", item[1])
        self._behind.clear()
        return self._db
