"""MiniWoB++ as a source of tasks for the web environment.

    make_content   seed -> {"page": "click-test", "seed": 7}
    start          serves the package's pages and opens the page with its seed
    judge          the reward that the page has noted, from 0 to 1
    plan           scripted solutions of click tasks

The pages draw their problems from the seed, in the browser, so a task is the same on every machine. The
instruction is on the page itself. A page without scripts does nothing: Chromium is needed.

A page ends its task by itself, at the first click that decides: the episode ends with it. An agent that exits
before that gets nothing.

The reward is the page's own, without its part for speed; what the page pays below nothing counts as nothing.
The first reward of the task's page counts (`pages.py`); other pages and seeds of the host pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepwell.core import JSON, InputError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.driver import PageDriver
from stepwell.envs.web.miniwob.options import MiniWobOptions, fill_pages
from stepwell.envs.web.miniwob.pages import list_pages, read_reward
from stepwell.envs.web.miniwob.server import HOST, make_page_url, serve_pages
from stepwell.envs.web.miniwob.solvers import IS_OVER, plan_clicks
from stepwell.envs.web.page import PageView
from stepwell.envs.web.sources import TaskStart

INSTRUCTION = "Do what the page asks for."


class MiniWobSource:
    """The suite of small pages."""

    def __init__(self, options: MiniWobOptions | None = None) -> None:
        self.options = fill_pages(options or MiniWobOptions())
        self._url = ""

    def make_content(self, options: Any, seed: int) -> dict[str, JSON]:
        """The task of a seed: seeds count through the pages, and then on with the next seed of each."""
        pages = self.options.pages or list_pages()
        return {
            "source": "miniwob",
            "page": pages[seed % len(pages)],
            "seed": seed // len(pages),
            "instruction": INSTRUCTION,
        }

    def start(self, content: Mapping[str, Any]) -> TaskStart:
        """Serve the pages and begin at the task's."""
        name, seed = content.get("page"), content.get("seed")
        if name not in list_pages() or not isinstance(seed, int) or seed < 0:
            raise InputError("a task of MiniWoB++ holds a known 'page' and a 'seed' of at least 0")
        self._url = make_page_url(str(name), seed)
        return TaskStart(self._url, allowed_hosts=(HOST,), keeps_nothing=True, serve=serve_pages)

    def has_ended(self, view: PageView) -> bool:
        """Whether the task's page has given its reward."""
        return IS_OVER in view.text and view.url.partition("#")[0] == self._url

    def judge(self, view: PageView, driver: PageDriver, answer: str) -> float:
        """The reward of the task's page; 0 if it is not shown, or was not brought to its end."""
        if view.url.partition("#")[0] != self._url:
            return 0.0
        return max(0.0, read_reward(driver.raw_html()) or 0.0)

    def plan(self, content: Mapping[str, Any]) -> Callable[[PageView], WebAction]:
        """The scripted solution of a click task."""
        return plan_clicks(str(content.get("page")))

    def close(self) -> None:
        """Nothing is held: pages keep no state."""
