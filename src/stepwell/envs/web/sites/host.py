"""The own web for episodes and for people: one application, a database snapshot for each.

    host = SiteHost(seed=0, size="tiny")
    episode = host.open_episode()          # requests with episode.headers see this snapshot alone
    ...
    episode.close()

Programs call `host.app` in process; `host.serve()` offers the same over HTTP for a browser.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import ConfigError, EnvError
from stepwell.core.ids import new_id
from stepwell.envs.web.sites.database import ROWS_PER_PAGE, Size, build_world, open_copy
from stepwell.envs.web.sites.seeding.words import load_words
from stepwell.envs.web.sites.visit import EPISODE_HEADER, set_state

if TYPE_CHECKING:
    from starlette.applications import Starlette


MAX_VISITORS = 64
START_TIMEOUT_S = 10.0


@dataclass(slots=True)
class SiteEpisode:
    """A private snapshot, selected by `headers`."""

    host: SiteHost
    name: str
    db: sqlite3.Connection

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with every request of this episode."""
        return {EPISODE_HEADER: self.name}

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of this episode's database."""
        return [tuple(row) for row in self.db.execute(sql, values)]

    def log_in(self, site: str, user: str) -> None:
        """Start with a person logged in."""
        set_state(self.db, f"user:{site}", user)

    def close(self) -> None:
        """Forget the snapshot."""
        self.host.close_episode(self.name)


class SiteHost:
    """All five sites over the world of one seed and size."""

    def __init__(self, seed: int, size: Size) -> None:
        self.seed, self.size = seed, size
        self.rows_per_page, self.today = ROWS_PER_PAGE.get(size, 0), ""
        self._data = build_world(seed, size)
        self.today = load_words(size).today
        self._episodes: dict[str, SiteEpisode] = {}
        self._visitors: OrderedDict[str, sqlite3.Connection] = OrderedDict()
        self.app = _build_app(self)
        self._server: Any = None
        self._port = 0
        self._thread: threading.Thread | None = None

    def open_episode(self) -> SiteEpisode:
        """A new snapshot."""
        episode = SiteEpisode(self, new_id("episode"), open_copy(self._data))
        self._episodes[episode.name] = episode
        return episode

    def close_episode(self, name: str) -> None:
        """Forget a snapshot; closing twice is harmless."""
        if episode := self._episodes.pop(name, None):
            episode.db.close()

    def find_episode(self, name: str) -> sqlite3.Connection | None:
        """The snapshot of an open episode."""
        episode = self._episodes.get(name)
        return episode.db if episode else None

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
        if self._server is not None:
            return self._port
        import uvicorn

        listener = socket.create_server(("127.0.0.1", port))
        config = uvicorn.Config(self.app, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise EnvError("the sites did not start to serve")
            time.sleep(0.005)
        self._port = int(listener.getsockname()[1])
        return self._port

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


def _build_app(host: SiteHost) -> Starlette:
    try:
        from stepwell.envs.web.sites.app import build_app
    except ImportError as error:
        raise ConfigError(f"the sites need starlette ({error}): pip install 'stepwell[web]'") from error
    return build_app(host)
