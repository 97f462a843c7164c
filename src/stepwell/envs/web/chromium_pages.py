"""One tab of Chromium: waits until a page has settled, finds out what went wrong, reads it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from stepwell.envs.web.addresses import BLANK, AllowedHosts
from stepwell.envs.web.light import NOT_KEPT

AWAITED = frozenset({"document", "xhr", "fetch", "script"})
ERROR_PAGE = "chrome-error:"
RETURNS = 12  # attempts to leave an error page, 3 seconds in all
DEPARTURE_S = 5.0  # longest wait for the request of a page that said it leaves
ERROR_PAGE_S = 2.0  # longest wait for the page that tells a failure: it comes a moment after the failure
ANIMATION_S = 1.5  # a page that moves for longer is read as it is
# Resolves after the page's own tasks and a frame, once nothing moves any more (no scrolling, no CSS animation
# that ends, none of jQuery): how often the page has begun to leave and has opened a tab since the last call.
_SETTLE = """([key, wait_ms]) => new Promise(done => {
  const began = performance.now();
  let top = window.scrollY, left = window.scrollX;
  const isMoving = () => {
    try {
      const isScrolling = window.scrollY !== top || window.scrollX !== left;
      [top, left] = [window.scrollY, window.scrollX];
      if (isScrolling) return true;
      const timers = window.jQuery && window.jQuery.timers;
      return (timers && timers.length > 0) || document.getAnimations().some((one) =>
        one.playState === "running" && one.effect && Number.isFinite(one.effect.getComputedTiming().endTime));
    } catch (error) {
      return false;  // the page has put something else in their place
    }
  };
  const rest = (then) => setTimeout(() => requestAnimationFrame(() => setTimeout(then, 0)), 0);
  const answer = () => {
    const state = window[key] || {}, found = [state.departures || 0, state.openings || 0];
    if (found[0] + found[1]) state.departures = state.openings = 0;
    done(found);
  };
  const look = (hasMoved) => {
    if (performance.now() - began > wait_ms) answer();
    else if (isMoving()) setTimeout(look, 20, true);
    else if (hasMoved) rest(() => look(false));  // what the page does at the end of a movement is done then
    else answer();
  };
  rest(() => look(false));
})"""


class ChromiumTab:
    """A Playwright page with what is known about it. `notices` is the driver's list, `key` the name under
    which the page keeps what the driver's scripts note."""

    def __init__(self, page: Any, notices: list[str], key: str) -> None:
        self.page = page
        self.title = ""
        self.offset = 0  # first line of the viewport, as in the light driver
        self.has_no_history = True
        self._notices = notices
        self._key = key
        self.num_openings = 0  # tabs that the page asked for during the action
        self._num_documents = 0  # that came into this tab
        self._num_departures = 0  # requests for another document since the present one came
        self._requests: set[Any] = set()
        self._failure: tuple[str, str] | None = None
        self._changed = asyncio.Event()
        self._devtools: Any = None
        page.on("request", self._note_request)
        page.on("requestfinished", self._note_end)
        page.on("requestfailed", self._note_failure)
        page.on("framenavigated", self._note_navigation)
        page.on("download", self._note_download)

    def _note_request(self, request: Any) -> None:
        if request.resource_type in AWAITED:
            self._requests.add(request)
        if request.resource_type == "document":
            self._num_departures += 1
            self._changed.set()
        if request.redirected_from is not None:
            self._requests.discard(request.redirected_from)

    def _note_end(self, request: Any) -> None:
        self._requests.discard(request)
        self._changed.set()

    def _note_failure(self, request: Any) -> None:
        if request.is_navigation_request() and request.frame == self.page.main_frame:
            self._failure = request.url, request.failure or "failed"
        self._note_end(request)

    def _note_navigation(self, frame: Any) -> None:
        if frame == self.page.main_frame:
            self.offset = 0
            self._num_documents += 1
            self._num_departures = 0
            if not frame.url.startswith((BLANK, ERROR_PAGE)):
                self.has_no_history = False
            self._changed.set()

    def _note_download(self, download: Any) -> None:
        self._notices.append(f"the download of {download.suggested_filename} was refused")

    async def visit_address(self, url: str, timeout_s: float) -> None:
        """Go there; a failure is kept for `recover_page`."""
        from playwright.async_api import Error

        self._failure = None
        try:
            await self.page.goto(url, wait_until="commit", timeout=1000 * timeout_s)
        except Error as error:
            words = str(error)
            if "Download is starting" in words:
                return
            if "closed" in words or "crash" in words:
                raise
            if "Timeout" in words:
                self._notices.append(f"the page did not load in {timeout_s:g} seconds")
            self._failure = self._failure or (url, words.split("\n", 1)[0])

    async def settle_page(self, deadline: float) -> bool:
        """Wait until the page is still; False if it is not at the deadline."""
        from playwright.async_api import Error

        while (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._settle_once(left), left)
            except TimeoutError:
                return False
            except Error as error:
                words = str(error)
                if "destroyed" in words or "navigat" in words or "detached" in words:
                    continue  # another page came meanwhile: wait for that one
                if self.page.is_closed():
                    return True
                if "Timeout" in words:
                    return False
                raise
            if not self._requests:
                return True
        return False

    def begin_action(self) -> None:
        """Count from here which pages an action asks for."""
        self._num_departures = self.num_openings = 0

    async def _settle_once(self, left: float) -> None:
        number = self._num_documents
        departures, openings = await self.page.evaluate(_SETTLE, [self._key, 1000 * ANIMATION_S])
        self.num_openings += openings
        if departures:
            until = time.monotonic() + min(left, DEPARTURE_S)
            while self._num_documents == number and not self._num_departures:
                if (wait_s := until - time.monotonic()) <= 0:
                    break
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait_s)
        while self._requests:
            self._changed.clear()
            await self._changed.wait()
        await self.page.wait_for_load_state("load")

    async def recover_page(self, allowed: AllowedHosts) -> str:
        """After a failed navigation return to the page before; why it failed, or ""."""
        if self._failure is not None and "ERR_" in self._failure[1] and "ERR_ABORTED" not in self._failure[1]:
            await self._wait_for_error_page()
        failure, self._failure = self._failure, None
        is_error = self.page.url.startswith(ERROR_PAGE)
        if failure is None and not is_error:
            return ""
        url, words = failure or (self.page.url, "failed")
        if is_error and not self.page.is_closed():
            await self._leave_error_page()
        elif "ERR_ABORTED" in words:  # a download or an answer without content: the page stayed
            return ""
        if not allowed.allow_address(url):
            return f"the address {url[:200]} is not allowed here"
        if "ERR_TOO_MANY_REDIRECTS" in words:
            return "the site redirects without end"
        code = next((part for part in words.split() if "ERR_" in part), words)
        return f"the address {url[:200]} cannot be opened: {code.removeprefix('net::')}"

    async def _wait_for_error_page(self) -> None:
        until = time.monotonic() + ERROR_PAGE_S
        while not self.page.url.startswith(ERROR_PAGE) and (wait_s := until - time.monotonic()) > 0:
            if self.page.is_closed():
                return
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)

    async def _leave_error_page(self) -> None:
        if not await self.move_in_history(-1):
            await self.page.goto(BLANK)
        self._failure = None

    async def move_in_history(self, step: int) -> bool:
        """Go back or forward; False if there is no page (a blank first page does not count).

        A page that answered a form and must not be kept cannot be shown again: the present one stays.
        """
        from playwright.async_api import Error

        session = await self._find_devtools()
        history = await session.send("Page.getNavigationHistory")
        place = history["currentIndex"] + step
        entries = history["entries"]
        if not 0 <= place < len(entries) or entries[place]["url"] == BLANK:
            return False
        move = self.page.go_back if step < 0 else self.page.go_forward
        try:
            await move(wait_until="commit")
        except Error as error:
            if "ERR_CACHE_MISS" not in str(error):
                raise
            self._notices.append(NOT_KEPT)
            await self._return_from_error(self.page.go_forward if step < 0 else self.page.go_back)
        return True

    async def forget_history(self) -> None:
        """The present page becomes the first one."""
        await (await self._find_devtools()).send("Page.resetNavigationHistory")

    async def _return_from_error(self, move: Any) -> None:
        """Once the error page is there, move away from it; meanwhile the browser changes its processes."""
        from playwright.async_api import Error

        for attempt in range(RETURNS):
            await asyncio.sleep(0.05 * attempt)
            if not self.page.url.startswith(ERROR_PAGE):
                continue
            try:
                await move(wait_until="commit")
            except Error as error:
                if "Not attached" not in str(error):
                    raise
                continue
            break
        self._failure = None

    async def collect_page(self, script: str, arguments: dict[str, Any], timeout_s: float) -> str | None:
        """Read the page with a script; None if the page does not answer."""
        from playwright.async_api import Error

        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                raw: str = await asyncio.wait_for(self.page.evaluate(script, arguments), left)
                return raw
            except TimeoutError:
                return None
            except Error as error:
                if not any(word in str(error) for word in ("destroyed", "navigat", "detached")):
                    raise
                await self.settle_page(deadline)
        return None

    async def drop_page(self) -> None:
        """Close a page that may not answer."""
        with suppress(TimeoutError):  # it goes with its context
            await asyncio.wait_for(self.page.close(run_before_unload=False), 5)

    async def _find_devtools(self) -> Any:
        if self._devtools is None:
            self._devtools = await self.page.context.new_cdp_session(self.page)
        return self._devtools
