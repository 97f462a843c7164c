"""A request to a site in this process and its answer, as plain data: what drivers, sites and caches share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple


class SiteRequest(NamedTuple):
    """All that an answer depends on besides the database. `host` may name a port; `path` is decoded."""

    method: str
    host: str
    path: str
    query: str = ""
    body: bytes = b""


class SiteAnswer(NamedTuple):
    """An answer; it is shared by all who ask the same, so nobody changes it."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class DirectSite(ABC):
    """An application that answers in this process without waiting: no loop is needed to ask it."""

    @abstractmethod
    def answer_request(self, request: SiteRequest, headers: Mapping[str, str]) -> SiteAnswer:
        """Answer at once; names of headers are in small letters."""
