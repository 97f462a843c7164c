"""The Chromium driver: a real browser with scripts, through Playwright.

    act ─► refuse_action ─► do_action ─► settle_page ─► recover_page ─► read_page ─► PageView

Waiting. After an action the page is read once its load has ended and no document, script or request that it
started is under way, at most `timeout_s` later. The page is then read as it is, and the notice says that the
page still loads. A page whose scripts never yield is closed and replaced by a blank one.

What leaves a page: pop-ups become tabs and get the focus; alerts and confirmations are accepted, prompts
dismissed, and their text is in the notice; downloads are refused; a navigation that fails or is not allowed
leads back to the page before, with a notice.

A new context costs a process of the browser, five times as much as a page. With `reuses_context` the next
episode gets the context of the one before, if that has one tab and needs neither headers nor a stored state:
its cookies, storage and history are emptied first. It is for pages that keep nothing elsewhere.

Such a page may offer `window.beginAgain(address)`: it shows then what loading this address would show,
without loading it, and returns true. Its tab is put aside when the next episode is on another page
(`parked_tabs.py`).

What each action does is in `chromium_actions.py`. Which hosts exist is decided by the browser's own resolver
(`browser.py`), not here.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from stepwell.core import EnvError
from stepwell.envs.tiles import Image
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import (
    BLANK,
    AllowedHosts,
    resolve_typed_address,
    write_resolver_rules,
)
from stepwell.envs.web.browser import BrowserHost, find_browser_host
from stepwell.envs.web.chromium_actions import ChromiumActions
from stepwell.envs.web.chromium_pages import ChromiumTab
from stepwell.envs.web.controls import refuse_action
from stepwell.envs.web.light import MAX_TABS, MISSING_VALUE, TOO_MANY_TABS
from stepwell.envs.web.marks import decode_image, draw_marks
from stepwell.envs.web.observation import make_view
from stepwell.envs.web.page import PageView
from stepwell.envs.web.parked_tabs import ParkedTabs
from stepwell.envs.web.simplify import simplify_page
from stepwell.envs.web.snapshot import MAX_DEPTH, MAX_NODES, Snapshot

COLLECT = resources.files("stepwell.envs.web").joinpath("collect.js").read_text()
LISTEN = resources.files("stepwell.envs.web").joinpath("listen.js").read_text()
BOXES = (
    "([key, places]) => places.map(place => window[key].elements[place].getBoundingClientRect())"
    ".map(box => [box.x, box.y, box.width, box.height])"
)
SCREEN = {"width": 1280, "height": 720}
# The page that is left can write nothing any more, and leaves nothing.
FORGET = """() => {
  Storage.prototype.setItem = () => undefined;
  localStorage.clear(); sessionStorage.clear(); window.name = "";
}"""
BEGIN_AGAIN = (
    """address => !document.cookie && typeof window.beginAgain === "function" && window.beginAgain(address)"""
)
# A tab is put aside if its page can begin again; it leaves nothing to the tab that comes in its place.
PUT_ASIDE = """() => {
  const canBeginAgain = typeof window.beginAgain === "function";
  if (canBeginAgain) localStorage.clear();
  return canBeginAgain;
}"""
MAX_REUSES = 50  # of a context, by loading a page; then a fresh one frees what the browser still holds
MAX_RESTARTS = 1000  # of a context, by pages that began again
T = TypeVar("T")


class ChromiumDriver(ChromiumActions):
    """One context of a real browser.

    `serve` starts the server of the allowed hosts on this machine and returns its port (see `TaskStart`).
    `viewport`: "flow" counts lines as the light driver does, "screen" goes by what the screen shows.
    """

    def __init__(
        self,
        serve: Callable[[], int] | None = None,
        timeout_s: float = 10.0,
        viewport: Literal["flow", "screen"] = "flow",
        host: BrowserHost | None = None,
        *,
        reuses_context: bool = False,
    ) -> None:
        super().__init__(timeout_s, key="k" + secrets.token_hex(8))
        self.reuses_context = reuses_context
        self._num_reuses = self._num_restarts = 0
        self._parked = ParkedTabs()
        self._rules = ""
        self._serve, self._is_flow = serve, viewport == "flow"
        self._host = host
        self._closing: asyncio.Future[None] | None = None

    def open(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        allowed_hosts: Sequence[str],
        storage_state: Any = None,
    ) -> PageView:
        """Start afresh at `url`; a site that does not answer is an `EnvError`."""
        self._allowed = AllowedHosts.from_names(allowed_hosts)
        rules = write_resolver_rules(self._allowed, self._serve() if self._serve else None)
        if self._can_reuse(rules, url) and not headers and storage_state is None:
            with suppress(EnvError):  # a context that fails is replaced
                return self._run(self._open_again(url), 3 * self._timeout_s + 30)
        self.close()
        self._rules, self._num_reuses, self._num_restarts = rules, 0, 0
        return self._run(self._open(rules, url, dict(headers), storage_state), 3 * self._timeout_s + 120)

    def act(self, action: WebAction) -> PageView:
        """Do one action."""
        return self._run(self._act(action), 3 * self._timeout_s + 30)

    def view(self) -> PageView:
        """The focused tab now, read again."""
        return self._run(self._view(), self._timeout_s + 30)

    def raw_html(self) -> str:
        """The HTML of the focused tab as it stands now."""
        html: str = self._run(self._current_tab.page.content(), self._timeout_s + 30)
        return html

    def run_script(self, script: str) -> Any:
        """The value of a script in the focused tab, for judges; one that fails is an `EnvError`."""
        return self._run(self._current_tab.page.evaluate(script), self._timeout_s + 30)

    def screenshot(self, with_marks: bool = False) -> Image | None:
        """The focused tab as an image; with marks, the ids of the elements stand beside them."""
        return self._run(self._screenshot(with_marks), self._timeout_s + 30)

    def close(self) -> None:
        """Give the context back."""
        if self._context is not None and self._host is not None and not self._host.is_closed:
            context, self._context = self._context, None
            self._host.run_call(self._host.close_context(context), 30)
        self._context = None
        self._tabs = []
        self._parked.forget_all()

    def _run(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run in the browser's loop; a browser that is gone is an `EnvError`."""
        if self._host is None or self._host.is_closed:
            self._host = find_browser_host()
        from playwright.async_api import Error

        try:
            return self._host.run_call(call, timeout_s)
        except Error as error:
            raise EnvError(f"the browser failed: {_take_first_line(error)}") from error

    async def _open(self, rules: str, url: str, headers: dict[str, str], storage_state: Any) -> PageView:
        assert self._host is not None
        self._context = await self._host.open_context(
            rules,
            self._parked,
            extra_http_headers=headers,
            storage_state=storage_state,
            viewport=SCREEN,
            accept_downloads=False,
            service_workers="block",
            locale="en-US",
            timezone_id="UTC",
            reduced_motion="reduce",
        )
        self._context.set_default_timeout(1000 * self._timeout_s)
        await self._context.add_init_script(f"({LISTEN})({self._key!r})")
        self._context.on("page", self._add_page)
        self._context.on("dialog", self._answer_dialog)
        self._tabs, self._tab, self._notices = [], 0, []
        await self._context.new_page()
        return await self._open_first(url)

    def _can_reuse(self, rules: str, url: str) -> bool:
        if not self.reuses_context or self._context is None or rules != self._rules or len(self._tabs) != 1:
            return False
        here, there = urlsplit(self._current_tab.page.url), urlsplit(url)
        is_worn = self._num_reuses >= MAX_REUSES or self._num_restarts >= MAX_RESTARTS
        return not is_worn and (here.scheme, here.netloc) == (there.scheme, there.netloc)

    async def _open_again(self, url: str) -> PageView:
        """Start afresh in the context that is open: in a page that can begin again, or by loading it."""
        self._notices.clear()
        await self._switch_tab(url)
        page = self._current_tab.page
        await page.mouse.move(0, 0)
        if page.url != BLANK and await page.evaluate(BEGIN_AGAIN, url):
            self._num_restarts += 1
            self._current_tab.offset = 0
            await self._finish_action()
            view = await self._view()
        else:
            self._num_reuses += 1
            if page.url != BLANK:
                await page.evaluate(FORGET)
            await self._context.clear_cookies()
            view = await self._open_first(url)
        await self._current_tab.forget_history()
        return view

    async def _switch_tab(self, url: str) -> None:
        """If the present page is another one and can begin again, put its tab aside; take one for `url`."""
        tab = self._current_tab
        here, there = urlsplit(tab.page.url).path, urlsplit(url).path
        if here == there or not await tab.page.evaluate(PUT_ASIDE):
            return
        self._tabs.remove(tab)
        worn = self._parked.put_aside(here, tab)
        if (kept := self._parked.take(there)) is not None:
            self._tabs, self._tab = [kept], 0
        else:
            await self._context.new_page()
        if worn is not None:
            await worn.drop_page()
        assert self._host is not None
        await self._host.close_spare_tabs()

    async def _open_first(self, url: str) -> PageView:
        await self._go(resolve_typed_address(url, BLANK))
        await self._finish_action()
        notices = list(self._notices)
        view = None if self._current_tab.page.url == BLANK else await self._view()
        if view is None or view.url == BLANK:
            why = "; ".join(notices if view is None else [view.notice])
            raise EnvError(f"the start page {url} cannot be opened: {why}")
        return view

    def _add_page(self, page: Any) -> None:
        """A tab appeared: by an action of ours or by a pop-up."""
        if len(self._tabs) >= MAX_TABS:
            self._notices.append(TOO_MANY_TABS)
            self._closing = asyncio.ensure_future(page.close())
            return
        self._tabs.append(ChromiumTab(page, self._notices, self._key))
        self._tab = len(self._tabs) - 1
        page.on("close", self._drop_page)

    def _drop_page(self, page: Any) -> None:
        place = next((i for i, tab in enumerate(self._tabs) if tab.page is page), None)
        if place is None:
            return
        del self._tabs[place]
        if place <= self._tab:
            self._tab = max(0, self._tab - 1)

    async def _answer_dialog(self, dialog: Any) -> None:
        words = " ".join(dialog.message.split())[:300]
        accepts = dialog.type != "prompt"
        if dialog.type != "beforeunload":
            done = "accepted" if accepts else "dismissed"
            self._notices.append(f"the page showed the {dialog.type} {words!r}, which was {done}")
        await (dialog.accept() if accepts else dialog.dismiss())

    async def _act(self, action: WebAction) -> PageView:
        self._notices.clear()
        await self._ensure_tab()
        refusal = refuse_action(self._page, action, self._allowed, self._snapshot.base)
        if refusal:
            return self._make_view([refusal])
        self._current_tab.begin_action()
        self._num_tabs = len(self._tabs)
        await self._do_action(action)
        await self._finish_action()
        return await self._view()

    async def _do_action(self, action: WebAction) -> None:
        """Do it; what Playwright cannot do in time is reported to the agent."""
        from playwright.async_api import TimeoutError as PageTimeoutError

        try:
            call = getattr(self, f"_do_{action.name}")(action)
            await asyncio.wait_for(call, self._timeout_s)
        except (TimeoutError, PageTimeoutError):
            self._notices.append(f"{action.name} did not end within {self._timeout_s:g} seconds")

    async def _finish_action(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        for _ in range(MAX_TABS + 2):
            await self._ensure_tab()
            tab = self._current_tab
            if not await tab.settle_page(deadline):
                self._notices.append(f"the page still loads after {self._timeout_s:g} seconds")
            if tab.num_openings:
                await self._wait_for_tab()
            refusal = await tab.recover_page(self._allowed)
            if not refusal and tab in self._tabs and tab is self._current_tab:
                return
            if refusal:
                self._notices.append(refusal)
                if tab.has_no_history and len(self._tabs) > 1:
                    await tab.page.close()

    async def _view(self) -> PageView:
        for _ in range(MAX_TABS):
            await self._ensure_tab()
            tab = self._current_tab
            await self._read_page()
            if tab is self._current_tab or tab not in self._tabs:
                break
            await self._finish_action()  # a tab came while the page was read
        notices, self._notices[:] = list(self._notices), []
        return self._make_view(notices)

    async def _read_page(self) -> None:
        raw = await self._current_tab.collect_page(
            COLLECT, {"key": self._key, "maxNodes": MAX_NODES, "maxDepth": MAX_DEPTH}, self._timeout_s
        )
        if raw is None:
            self._notices.append("the page did not answer and was closed")
            dead = self._current_tab
            await self._context.new_page()
            await dead.drop_page()
            raw = await self._current_tab.collect_page(
                COLLECT, {"key": self._key, "maxNodes": MAX_NODES, "maxDepth": MAX_DEPTH}, self._timeout_s
            )
        if raw is None:
            raise EnvError("the browser does not answer any more")
        data = json.loads(raw)
        self._snapshot = Snapshot(
            data["url"], " ".join(data["title"].split()), data["body"], data["base"], data["isCut"]
        )
        self._notices += [_tell_invalid(*item) for item in data["invalid"][:1]]
        self._page = simplify_page(self._snapshot)
        self._current_tab.title = self._snapshot.title

    def _make_view(self, notices: Sequence[str]) -> PageView:
        titles = tuple(tab.title for tab in self._tabs)
        offset = self._current_tab.offset if self._is_flow else -1
        notice = "; ".join(dict.fromkeys(notices))
        return make_view(
            self._page,
            self._snapshot.url,
            self._snapshot.title,
            titles,
            self._tab,
            offset=offset,
            notice=notice,
        )

    async def _screenshot(self, with_marks: bool) -> Image:
        image = decode_image(await self._current_tab.page.screenshot(animations="disabled", caret="hide"))
        if not with_marks:
            return image
        places = [node[3] for node in self._page.nodes.values()]
        boxes = await self._current_tab.page.evaluate(BOXES, [self._key, places])
        return draw_marks(image, dict(zip(self._page.nodes, boxes, strict=True)))


def _tell_invalid(name: str, is_missing: bool, message: str) -> str:
    """Why a form was not sent."""
    return MISSING_VALUE.format(name) if is_missing else f"the field {name}: {message[:200]}"


def _take_first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
