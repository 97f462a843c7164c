"""Tabs of a context that are put aside, by the path of their pages, until an episode starts there again.

An agent never sees them. At most `MAX_PARKED` are kept; the one that was used longest ago goes first. They
count in the number of contexts for which the browser host has memory; it closes them when that is reached.
"""

from __future__ import annotations

from stepwell.envs.web.chromium_pages import ChromiumTab

MAX_PARKED = 8


class ParkedTabs:
    """One tab for each path."""

    def __init__(self) -> None:
        self._tabs: dict[str, ChromiumTab] = {}

    def __len__(self) -> int:
        return len(self._tabs)

    def put_aside(self, path: str, tab: ChromiumTab) -> ChromiumTab | None:
        """Keep a tab; return the one that must be closed for it, if any."""
        worn = self._tabs.pop(path, None)
        self._tabs[path] = tab
        if worn is None and len(self._tabs) > MAX_PARKED:
            worn = self._tabs.pop(next(iter(self._tabs)))
        return worn

    def take(self, path: str) -> ChromiumTab | None:
        """The tab of a path, which is no longer kept; None if there is none, or if it has closed."""
        tab = self._tabs.pop(path, None)
        return None if tab is None or tab.page.is_closed() else tab

    def give_up_oldest(self) -> ChromiumTab:
        """The tab that was used longest ago, which is no longer kept and must be closed."""
        return self._tabs.pop(next(iter(self._tabs)))

    def forget_all(self) -> None:
        """Their context is gone."""
        self._tabs.clear()
