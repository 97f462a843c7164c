"""The own web for episodes and for people: one application, a database snapshot for each.

    host = SiteHost(seed=0, size="tiny")
    episode = host.open_episode()          # requests with episode.headers see this snapshot alone
    ...
    episode.close()

Programs call `host.app` in process; `host.serve()` offers the same over HTTP for a browser. What the sites
answered is kept and shared by all episodes (`answer_cache.py`); an episode that does something new gets a
connection to a copy of the seeded database (`take_copy`), in a transaction that is rolled back at its end.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections import OrderedDict, deque
from typing import Any

from stepwell.core.errors import EnvError
from stepwell.core.ids import make_id
from stepwell.envs.web.recent import RecentTable
from stepwell.envs.web.sites.answer_cache import MAX_ANSWERS, SiteAnswers
from stepwell.envs.web.sites.app import SitesApp
from stepwell.envs.web.sites.database import ROWS_PER_PAGE, Size, build_world, open_copy
from stepwell.envs.web.sites.episode import SiteEpisode
from stepwell.envs.web.sites.seeding.words import load_words

MAX_VISITORS, MAX_SPARE_COPIES = 64, 16
START_TIMEOUT_S = 30.0


class SiteHost:
    """All five sites over the world of one seed and size."""

    def __init__(self, seed: int, size: Size) -> None:
        self.seed, self.size = seed, size
        self.rows_per_page, self.today = ROWS_PER_PAGE.get(size, 0), ""
        self._data = build_world(seed, size)
        self.today = load_words(size).today
        self._episodes: dict[str, SiteEpisode] = {}
        self._visitors: OrderedDict[str, sqlite3.Connection] = OrderedDict()
        self.answers = SiteAnswers()
        self.judgements: RecentTable[tuple[bool]] = RecentTable(MAX_ANSWERS)
        self._spare_copies: deque[sqlite3.Connection] = deque()
        self.app = SitesApp(self)
        self._server: Any = None
        self._port = 0
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def open_episode(self) -> SiteEpisode:
        """A new snapshot."""
        episode = SiteEpisode(self, make_id("episode"))
        self._episodes[episode.name] = episode
        return episode

    def close_episode(self, name: str) -> None:
        """Forget a snapshot; closing twice is harmless."""
        if episode := self._episodes.pop(name, None):
            episode.release_database()

    def find_episode(self, name: str) -> SiteEpisode | None:
        """An open episode."""
        return self._episodes.get(name)

    def take_copy(self) -> sqlite3.Connection:
        """A connection to the seeded world; it is used by one episode at a time."""
        try:
            db = self._spare_copies.pop()
        except IndexError:
            db = open_copy(self._data)
        db.execute("BEGIN")
        return db

    def give_back_copy(self, db: sqlite3.Connection, *, is_clean: bool) -> None:
        """Undo what an episode did; a connection that others may hold is closed."""
        if is_clean and db.in_transaction and len(self._spare_copies) < MAX_SPARE_COPIES:
            db.execute("ROLLBACK")
            self._spare_copies.append(db)
        else:
            db.close()

    def find_visitor(self, name: str) -> sqlite3.Connection:
        """The snapshot of a visitor, made at the first visit; the oldest beyond 64 are forgotten."""
        if name not in self._visitors:
            self._visitors[name] = open_copy(self._data)
            if len(self._visitors) > MAX_VISITORS:
                self._visitors.popitem(last=False)[1].close()
        self._visitors.move_to_end(name)
        return self._visitors[name]

    def serve(self, port: int = 0) -> int:
        """Answer HTTP on the loopback, in a thread of its own; the port. Later calls give the same port."""
        with self._starting:
            if self._server is None:
                self._start_server(port)
            return self._port

    def _start_server(self, port: int) -> None:
        import uvicorn

        listener = socket.create_server(("127.0.0.1", port))
        config = uvicorn.Config(self.app, log_config=None, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise EnvError("the sites did not start to serve")
            time.sleep(0.005)
        self._server, self._thread = server, thread
        self._port = int(listener.getsockname()[1])

    def stop(self) -> None:
        """Stop serving and forget every snapshot."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None
        for name in list(self._episodes):
            self.close_episode(name)
        while self._visitors:
            self._visitors.popitem()[1].close()
        while self._spare_copies:
            self._spare_copies.pop().close()
