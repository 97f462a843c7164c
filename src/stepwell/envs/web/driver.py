"""The interface of a driver: one browser context, which plays one episode.

There are two: `chromium.py` drives a real browser, `light.py` reads pages without scripts. Both return the
same view of the same page.

Invariants
* Nothing outside of the allowed hosts is contacted, whatever a page or an agent asks for. A refused address
  is reported in `PageView.notice`; the page stays.
* An action that cannot be done (an id that is not there, an option that a select does not have) changes
  nothing and is reported in the notice: the agent is at fault, not the system.
* A driver raises `EnvError` only for faults of the system: the browser died, the start page cannot be
  reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stepwell.envs.tiles import Image
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.page import PageView


class PageDriver(Protocol):
    """One browser context = one episode."""

    def open(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        allowed_hosts: Sequence[str],
        storage_state: Any = None,
    ) -> PageView:
        """Start afresh at `url`: one tab, no history, only the cookies of `storage_state`.

        `headers` go with every request. `allowed_hosts` are `host`, `host:port` or `*.domain`.
        `storage_state` is Playwright's: {"cookies": [...], "origins": [...]}, or None.
        """

    def act(self, action: WebAction) -> PageView:
        """Do one action (all but exit) and wait until the page has settled."""

    def view(self) -> PageView:
        """The focused tab now."""

    def raw_html(self) -> str:
        """The HTML of the focused tab, not simplified."""

    def screenshot(self) -> Image | None:
        """The focused tab as an image; None if the driver cannot see."""

    def close(self) -> None:
        """Release the context; calling it twice is allowed."""
