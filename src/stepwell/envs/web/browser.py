"""Chromium for all drivers of a process: one thread with one asyncio loop, browsers, and their contexts.

A driver asks for a context and gives it back; it never sees a browser. Environments may run in any threads:
every call goes to the loop of `BrowserHost` and waits there, so that many contexts work at the same time.

Invariants
* One browser serves one set of network rules (`write_resolver_rules`). The rules are flags of its process, so
  that nothing in a page can change them: a host that is not in them does not exist for that browser.
* At most `max_contexts` contexts are open; further requests wait. The number comes from the memory and the
  cores of the machine unless it is given. A tab that is put aside counts like a context; tabs are closed
  before a context has to wait for one.
* A browser is retired after `MAX_USES` contexts, or when it holds more memory than its contexts explain: it
  takes no new context and ends with its last one. A browser that died is replaced at the next request. Its
  contexts raise `EnvError` to their drivers: their episodes are lost, the next ones are not.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import os
import shutil
import threading
import uuid
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell.core import ConfigError, EnvError
from stepwell.core.host_memory import read_available_bytes
from stepwell.core.names import describe_missing_module

if TYPE_CHECKING:
    from stepwell.envs.web.parked_tabs import ParkedTabs

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # no process for the next page beforehand: a context then starts two instead of three
    "--disable-features=Translate,OptimizationHints,MediaRouter,PreconnectToSearch,"
    "SpareRendererForSitePerProcess",
    "--dns-prefetch-disable",
    "--disable-smooth-scrolling",
)
# The shell without windows first: a context with a page costs it a ninth of the processor time.
BROWSERS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
INSTALL_BROWSER = "install Chromium: scripts/install_chromium.sh, or `apt-get install chromium` as root"
MAX_USES = 200
MAX_IDLE = 1  # browsers without a context that wait for tasks with their network rules
BROWSER_MB, CONTEXT_MB = 400, 70  # measured 330 and 33; with room for larger pages
MOST_CONTEXTS, CONTEXTS_PER_CORE = 64, 8  # more make pages late, not steps faster
LEAK_FACTOR = 4
WAIT_S = 120.0
T = TypeVar("T")


def find_chromium() -> str:
    """The path of the system's Chromium; `ConfigError` says how to install it."""
    named = os.environ.get("STEPWELL_CHROMIUM")
    for name in (named,) if named else BROWSERS:
        if path := shutil.which(name):
            return path
    raise ConfigError(f"no Chromium was found; {INSTALL_BROWSER}; or set STEPWELL_CHROMIUM to its path")


def require_playwright() -> None:
    """Refuse, with the extra to install, if Playwright is missing; nothing is imported."""
    if importlib.util.find_spec("playwright") is None:
        raise ConfigError(describe_missing_module("playwright"))


def choose_max_contexts() -> int:
    """How many contexts fit into half of the memory that is free now, at most 8 for each core, at least 1."""
    free_mb = read_available_bytes() / 2**20
    most = min(MOST_CONTEXTS, CONTEXTS_PER_CORE * (os.cpu_count() or 1))
    return int(max(1, min(most, (free_mb / 2 - BROWSER_MB) // CONTEXT_MB)))


@dataclass(slots=True, eq=False)
class HostedBrowser:
    """One Chromium process and its contexts."""

    browser: Any
    tag: str
    contexts: set[Any] = field(default_factory=set)
    num_uses: int = 0
    num_opening: int = 0  # contexts that are being opened

    def is_idle(self) -> bool:
        """Whether nothing uses it."""
        return not self.contexts and not self.num_opening

    def is_worn(self) -> bool:
        """Whether it should take no new context."""
        if self.num_uses >= MAX_USES:
            return True
        num_tabs = sum(max(1, len(context.pages)) for context in self.contexts)
        expected = BROWSER_MB + CONTEXT_MB * num_tabs
        return measure_memory_mb(self.tag) > LEAK_FACTOR * expected


class BrowserHost:
    """Playwright and its browsers, in a thread of their own."""

    def __init__(self, max_contexts: int | None = None) -> None:
        self.max_contexts = max_contexts or choose_max_contexts() + 1  # one for a replay beside a full batch
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="stepwell-browser")
        self._thread.start()
        self._playwright: Any = None
        self._browsers: dict[str, HostedBrowser] = {}
        self._retired: set[HostedBrowser] = set()
        self._parked: dict[Any, ParkedTabs] = {}  # of each context
        self._places = asyncio.Semaphore(self.max_contexts)
        self._opening = asyncio.Lock()
        self.is_closed = False

    def run_call(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine in the loop and wait for it; a browser that does not answer is an `EnvError`."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            future.cancel()
            raise EnvError(f"the browser did not answer within {timeout_s:g} s") from None

    async def open_context(self, rules: str, parked: ParkedTabs | None = None, **options: Any) -> Any:
        """A fresh context in a browser with these network rules; give it back with `close_context`.

        `parked` will hold the tabs of this context that are put aside.
        """
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_S)
        except TimeoutError:
            raise EnvError(
                f"all {self.max_contexts} browser contexts are in use; use fewer environments per process, "
                "or a machine with more memory"
            ) from None
        try:
            hosted = await self._find_browser(rules)
            try:
                context = await hosted.browser.new_context(**options)
            except BaseException:
                hosted.num_opening -= 1
                await self._end_if_retired(hosted)
                raise
        except BaseException:
            self._places.release()
            raise
        hosted.num_opening -= 1
        hosted.num_uses += 1
        hosted.contexts.add(context)
        if parked is not None:
            self._parked[context] = parked
        await self.close_spare_tabs()
        return context

    async def close_spare_tabs(self) -> None:
        """Close tabs that were put aside while there are more contexts and tabs than `max_contexts`."""
        while (num_aside := sum(map(len, self._parked.values()))) and (
            sum(len(hosted.contexts) for hosted in self.list_browsers()) + num_aside > self.max_contexts
        ):
            with suppress(Exception):  # a dead browser cannot close anything
                await max(self._parked.values(), key=len).give_up_oldest().drop_page()

    async def close_context(self, context: Any) -> None:
        """Close a context, also one whose browser died; its place is free again."""
        hosted = next((item for item in self.list_browsers() if context in item.contexts), None)
        if hosted is None:
            return
        hosted.contexts.discard(context)
        self._parked.pop(context, None)
        self._places.release()
        with suppress(Exception):  # a dead browser cannot close anything, and need not
            await asyncio.wait_for(context.close(), 10)
        await self._end_if_retired(hosted)

    def list_browsers(self) -> list[HostedBrowser]:
        """The browsers that run, the retired ones too."""
        return [*self._browsers.values(), *self._retired]

    def list_process_ids(self, rules: str | None = None) -> list[int]:
        """The main processes of the browsers that run now; with rules, of those that follow them."""
        kept = [item for key, item in self._browsers.items() if rules in (None, key)]
        tags = [item.tag for item in (*kept, *(self._retired if rules is None else ()))]
        return [pid for tag in tags for pid in find_processes(tag)]

    def close(self) -> None:
        """End every browser and the thread."""
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(Exception):
            self.run_call(self._close_all(), 15)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _find_browser(self, rules: str) -> HostedBrowser:
        """A browser with these rules; the caller opens a context and then takes one from `num_opening`."""
        async with self._opening:
            hosted = self._browsers.get(rules)
            if hosted is not None and (not hosted.browser.is_connected() or hosted.is_worn()):
                del self._browsers[rules]
                self._retired.add(hosted)
                await self._end_if_retired(hosted)
                hosted = None
            if hosted is None:
                await self._close_idle_browsers()
                hosted = self._browsers[rules] = await self._launch_browser(rules)
            hosted.num_opening += 1
            return hosted

    async def _end_if_retired(self, hosted: HostedBrowser) -> None:
        """End a retired browser that nothing uses any more."""
        if hosted in self._retired and hosted.is_idle():
            self._retired.discard(hosted)
            with suppress(Exception):  # one that died is closed
                await asyncio.wait_for(hosted.browser.close(), 10)

    async def _close_idle_browsers(self) -> None:
        """Leave at most `MAX_IDLE` browsers that nobody uses, the youngest: each holds some 300 MB."""
        idle = [rules for rules, hosted in self._browsers.items() if hosted.is_idle()]
        for rules in idle[: len(idle) - MAX_IDLE] if len(idle) > MAX_IDLE else ():
            with suppress(Exception):  # one that died is closed
                await asyncio.wait_for(self._browsers.pop(rules).browser.close(), 10)

    async def _launch_browser(self, rules: str) -> HostedBrowser:
        if self._playwright is None:
            self._playwright = await _start_playwright()
        tag = f"--stepwell-browser={uuid.uuid4().hex}"
        browser = await self._playwright.chromium.launch(
            executable_path=find_chromium(), args=[*FLAGS, f"--host-resolver-rules={rules}", tag]
        )
        return HostedBrowser(browser, tag)

    async def _close_all(self) -> None:
        for hosted in self.list_browsers():
            with suppress(Exception):
                await hosted.browser.close()
        if self._playwright is not None:
            await self._playwright.stop()


_hosts: dict[int, BrowserHost] = {}
_lock = threading.Lock()


def find_browser_host() -> BrowserHost:
    """The host of this process, started at the first call and ended with the process."""
    with _lock:
        host = _hosts.get(os.getpid())
        if host is None or host.is_closed:
            host = _hosts[os.getpid()] = BrowserHost()
            atexit.register(host.close)
        return host


async def _start_playwright() -> Any:
    try:
        from playwright.async_api import async_playwright
    except ImportError as error:
        raise ConfigError(describe_missing_module("playwright")) from error
    return await async_playwright().start()


def find_processes(tag: str) -> list[int]:
    """The processes that were started with this argument, without scripts that only started another one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if tag.encode() in path.read_bytes().split(b"\0"):
                parents[int(path.parent.name)] = _read_parent(path.parent)
    return [pid for pid in parents if pid not in parents.values()]


def measure_memory_mb(tag: str) -> float:
    """The memory of a browser with all its processes; 0 where it cannot be measured."""
    parents, pages = _read_processes()
    family = set(find_processes(tag))
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(pages.get(pid, 0) for pid in family) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _read_parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def _read_processes() -> tuple[dict[int, int], dict[int, int]]:
    """Parent and private pages of every process."""
    parents, pages = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(path.name)
            parents[pid] = _read_parent(path)
            resident, shared = (path / "statm").read_text().split()[1:3]
            pages[pid] = int(resident) - int(shared)
    return parents, pages
