"""The actions of the Chromium driver: each does to the present tab what an agent asked for.

`chromium.py` refuses what cannot be done before it comes here, and reads the page afterwards. What turns out
to be impossible only now is told to the agent by a notice.
"""

from __future__ import annotations

import asyncio
import time
from importlib import resources
from typing import Any

from stepwell.core import EnvError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import BLANK, AllowedHosts, resolve_typed_address
from stepwell.envs.web.chromium_pages import ChromiumTab
from stepwell.envs.web.controls import find_option, refuse_address
from stepwell.envs.web.light import LAST_TAB, MAX_TABS, NO_EARLIER, NO_LATER, TOO_MANY_TABS
from stepwell.envs.web.observation import FLOW_LINES, place_viewport
from stepwell.envs.web.simplify import SimplePage
from stepwell.envs.web.snapshot import Snapshot, make_node

AIM = resources.files("stepwell.envs.web").joinpath("aim.js").read_text()
CLICK = "([key, place]) => { const found = window[key].elements[place]; if (found) found.click(); }"
IS_IN_SELECT = "() => document.activeElement !== null && document.activeElement.localName === 'select'"
TAB_S = 2.0  # longest wait for the tab that a link opens
KEYS = {
    "ctrl": "Control",
    "cmd": "Meta",
    "command": "Meta",
    "return": "Enter",
    "esc": "Escape",
    "del": "Delete",
}


class ChromiumActions:
    """The tabs of one context, the page as it was read last, and what can be done to them."""

    def __init__(self, timeout_s: float, key: str) -> None:
        self._timeout_s, self._key = timeout_s, key
        self._allowed = AllowedHosts(())
        self._context: Any = None
        self._tabs: list[ChromiumTab] = []
        self._tab = 0
        self._num_tabs = 1  # before the present action
        self._notices: list[str] = []
        self._page = SimplePage()
        self._snapshot = Snapshot(BLANK, "", make_node("body"), BLANK)

    @property
    def _current_tab(self) -> ChromiumTab:
        if self._tabs:
            return self._tabs[self._tab]
        if self._context is None:
            raise EnvError("no page is open; call open first")
        raise EnvError("the browser closed its last page; call open to start again")

    async def _ensure_tab(self) -> None:
        """An agent always has a tab: open one if the last page closed itself. A dead browser raises."""
        if not self._tabs and self._context is not None:
            await self._context.new_page()

    async def _find_handle(self, action: WebAction) -> Any:
        place = self._page.nodes[action.element][3]
        found = await self._current_tab.page.evaluate_handle(
            "([key, place]) => window[key].elements[place]", [self._key, place]
        )
        return found.as_element()

    async def _aim(self, action: WebAction) -> tuple[float, float, bool] | None:
        """Where an element is on the screen, and whether a click there reaches it; None if it is nowhere."""
        place = self._page.nodes[action.element][3]
        found = await self._current_tab.page.evaluate(AIM, [self._key, place])
        return None if found is None else tuple(found)

    async def _do_click(self, action: WebAction) -> None:
        """With the mouse; what is covered or has no place is clicked by script."""
        node, page = self._page.nodes[action.element], self._current_tab.page
        aim = await self._aim(action)
        if aim is not None and aim[2]:
            await page.mouse.click(aim[0], aim[1])
        else:
            await page.evaluate(CLICK, [self._key, node[3]])
        if node[1].get("target", "").lower() in ("_blank", "blank"):
            await self._wait_for_tab()

    async def _wait_for_tab(self) -> None:
        """The page asked for a tab: wait until it is there, or until it is known why not."""
        deadline = time.monotonic() + TAB_S
        while len(self._tabs) <= self._num_tabs and not self._notices and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    async def _do_hover(self, action: WebAction) -> None:
        if (aim := await self._aim(action)) is not None:
            await self._current_tab.page.mouse.move(aim[0], aim[1])

    async def _do_type(self, action: WebAction) -> None:
        await (await self._find_handle(action)).fill(action.argument, force=True)

    async def _do_search(self, action: WebAction) -> None:
        handle = await self._find_handle(action)
        await handle.fill(action.argument, force=True)
        await handle.press("Enter")

    async def _do_press(self, action: WebAction) -> None:
        from playwright.async_api import Error

        keys = "+".join(KEYS.get(key.lower(), key) for key in action.argument.strip().split("+"))
        keys = keys if "+" in keys or len(keys) == 1 else keys[:1].upper() + keys[1:]
        steps = {"pagedown": 1, "pageup": -1, "home": -1_000_000, "end": 1_000_000}
        if keys.lower() in steps:
            self._move_viewport(steps[keys.lower()])
            if await self._current_tab.page.evaluate(IS_IN_SELECT):
                return  # these keys move the page, not the choice of a menu
        try:
            await self._current_tab.page.keyboard.press(keys)
        except Error as error:
            if "Unknown key" not in str(error):
                raise
            self._notices.append(f"there is no key {action.argument[:50]!r}")

    async def _do_select_dropdown_option(self, action: WebAction) -> None:
        place = find_option(self._page.nodes[action.element], action.argument)
        await (await self._find_handle(action)).select_option(index=place, force=True)

    async def _do_scroll(self, action: WebAction) -> None:
        direction = 1 if action.argument == "down" else -1
        await self._current_tab.page.evaluate("d => window.scrollBy(0, d * window.innerHeight)", direction)
        self._move_viewport(direction)

    def _move_viewport(self, pages: int) -> None:
        tab = self._current_tab
        tab.offset, _ = place_viewport(tab.offset + pages * FLOW_LINES, len(self._page.lines))

    async def _do_new_tab(self, action: WebAction) -> None:
        if len(self._tabs) >= MAX_TABS:
            self._notices.append(TOO_MANY_TABS)
        else:
            await self._context.new_page()

    async def _do_tab_focus(self, action: WebAction) -> None:
        if int(action.argument) >= len(self._tabs):
            last = len(self._tabs) - 1
            self._notices.append(f"there is no tab {action.argument}; the tabs are 0 to {last}")
            return
        self._tab = int(action.argument)
        await self._current_tab.page.bring_to_front()

    async def _do_close_tab(self, action: WebAction) -> None:
        if len(self._tabs) == 1:
            self._notices.append(LAST_TAB)
        else:
            await self._current_tab.page.close()

    async def _do_goto(self, action: WebAction) -> None:
        url = resolve_typed_address(action.argument, self._snapshot.url)
        refusal = refuse_address(url, action.argument, self._allowed)
        if not refusal and url == BLANK:
            refusal = "the blank page is opened by a new tab"
        if refusal:
            self._notices.append(refusal)
        else:
            await self._go(url)

    async def _go(self, url: str) -> None:
        await self._current_tab.visit_address(url, self._timeout_s)

    async def _do_go_back(self, action: WebAction) -> None:
        if not await self._current_tab.move_in_history(-1):
            self._notices.append(NO_EARLIER)

    async def _do_go_forward(self, action: WebAction) -> None:
        if not await self._current_tab.move_in_history(1):
            self._notices.append(NO_LATER)
