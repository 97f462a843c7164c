"""Chromium: what pages and machines do wrong is told or classified, and nothing else is contacted."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.envs.web.conftest import needs_chromium
from tests.envs.web.small_site import ScriptSite

from stepwell.config.loading import load_config
from stepwell.core import ConfigError, EnvError
from stepwell.envs.web import browser
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import AllowedHosts, write_resolver_rules
from stepwell.envs.web.browser import BrowserHost, choose_max_contexts, find_browser_host, find_chromium
from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.page import PageView
from stepwell.runs.build.resources import RunResources
from stepwell.runs.build.worker_plan import check_places

START = {"headers": {}, "allowed_hosts": ["a.test"]}


def open_page(driver: ChromiumDriver, path: str) -> PageView:
    return driver.open(f"http://a.test{path}", **START)


@contextmanager
def listen_for_spies() -> Iterator[tuple[str, list[Any]]]:
    """An address where nobody may call, and those who did."""
    callers: list[Any] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    is_over = threading.Event()

    def accept_callers() -> None:
        while not is_over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            callers.append(connection.recv(200))
            connection.close()

    thread = threading.Thread(target=accept_callers)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", callers
    is_over.set()
    thread.join()
    listener.close()


@needs_chromium
@pytest.mark.slow
def test_nothing_outside_of_the_allowed_hosts_is_contacted(
    chromium: ChromiumDriver, site: ScriptSite
) -> None:
    with listen_for_spies() as (address, callers):
        socket.create_connection(address.split(":")).close()
        while not callers:
            pass
        callers.clear()  # the listener works
        site.spy = address
        view = open_page(chromium, "/spy")
        for name in ("Link", "Send", "Go", "Hop"):
            element = next(e.id for e in view.elements if e.text == name)
            view = chromium.act(WebAction("click", element))
            assert "is not allowed here" in view.notice and view.url == "http://a.test/spy", name
        view = chromium.act(WebAction("goto", argument=f"http://{address}/goto"))
        assert "is not allowed here" in view.notice
    assert callers == []


@needs_chromium
@pytest.mark.slow
def test_what_moves_has_come_to_rest_before_it_is_seen_or_clicked(chromium: ChromiumDriver) -> None:
    view = open_page(chromium, "/moving")
    view = chromium.act(WebAction("click", next(e.id for e in view.elements if e.text == "Start")))
    assert [e.text for e in view.elements] == ["Still", "Catch"]
    view = chromium.act(WebAction("click", next(e.id for e in view.elements if e.text == "Catch")))
    assert [e.text for e in view.elements] == ["Still", "Caught"]


@needs_chromium
@pytest.mark.slow
def test_a_page_has_stopped_scrolling_before_it_is_clicked(chromium: ChromiumDriver) -> None:
    view = open_page(chromium, "/long")
    for number, key in ((30, "PageDown"), (190, "End"), (60, "PageUp"), (10, "Home"), (40, "PageDown")):
        view = chromium.act(WebAction("press", argument=key))
        element = next(e.id for e in view.elements if e.text == f"Number {number}")
        assert chromium.act(WebAction("click", element)).title == str(number), key
    view = chromium.act(WebAction("click", next(e.id for e in view.elements if e.text == "Up")))
    element = next(e.id for e in view.elements if e.text == "Number 20")
    assert chromium.act(WebAction("click", element)).title == "20"


@needs_chromium
def test_dialogs_are_answered_and_told(chromium: ChromiumDriver) -> None:
    open_page(chromium, "/alert")
    view = chromium.act(WebAction("click", "1"))
    assert view.notice == "the page showed the alert 'Sure?', which was accepted"
    open_page(chromium, "/confirm")
    view = chromium.act(WebAction("click", "1"))
    assert "confirm 'Go on?'" in view.notice and "true" in view.text


@needs_chromium
@pytest.mark.slow
def test_a_pop_up_becomes_the_focused_tab(chromium: ChromiumDriver) -> None:
    open_page(chromium, "/popup")
    view = chromium.act(WebAction("click", "1"))
    assert (view.title, view.tabs, view.tab) == ("Other", ("Popup", "Other"), 1)
    assert chromium.act(WebAction("close_tab")).title == "Popup"


@needs_chromium
def test_what_a_script_loads_is_waited_for(chromium: ChromiumDriver) -> None:
    open_page(chromium, "/fetch")
    assert "/echo GET x=1" in chromium.act(WebAction("click", "1")).text


@needs_chromium
@pytest.mark.slow
def test_a_screenshot_shows_marks(chromium: ChromiumDriver) -> None:
    open_page(chromium, "/")
    plain, marked = chromium.screenshot(), chromium.screenshot(with_marks=True)
    assert plain is not None and marked is not None
    assert plain.shape == marked.shape == (720, 1280, 3) and plain.dtype == np.uint8
    assert (plain != marked).any()


@needs_chromium
@pytest.mark.slow
def test_a_page_whose_script_never_ends_is_replaced(port: int) -> None:
    driver = ChromiumDriver(serve=lambda: port, timeout_s=1.5)
    open_page(driver, "/hang")
    view = driver.act(WebAction("click", "1"))
    assert "did not answer and was closed" in view.notice and view.url == "about:blank"
    assert driver.act(WebAction("goto", argument="http://a.test/other")).title == "Other"
    driver.close()


@needs_chromium
@pytest.mark.slow
def test_a_page_that_always_moves_on_is_cut_off(port: int) -> None:
    driver = ChromiumDriver(serve=lambda: port, timeout_s=1.5)
    other = open_page(driver, "/other")
    view = driver.act(WebAction("goto", argument="/spin"))
    assert "still loads after 1.5 seconds" in view.notice
    # the tab may be blank now, so the way on is a whole address
    assert driver.act(WebAction("goto", argument=other.url)).title == "Other"
    driver.close()


@needs_chromium
@pytest.mark.slow
def test_ten_megabytes_are_read(port: int) -> None:
    driver = ChromiumDriver(serve=lambda: port, timeout_s=60)
    view = open_page(driver, "/big")
    assert len(view.elements) == 18_000 and len(view.text) > 10_000_000
    driver.close()


@needs_chromium
@pytest.mark.slow
def test_a_page_of_a_million_elements_costs_a_bounded_time_and_no_episode(port: int) -> None:
    driver = ChromiumDriver(serve=lambda: port, timeout_s=2)
    other = open_page(driver, "/other")
    view = driver.act(WebAction("goto", argument="/nodes"))  # answers, cut; or is closed: both are told
    assert "still loads" in view.notice or "was closed" in view.notice
    for _ in range(5):  # the browser may still be busy with it
        view = driver.act(WebAction("goto", argument=other.url))
        if view.title == "Other":
            break
    assert view.title == "Other"
    driver.close()


@needs_chromium
@pytest.mark.slow
def test_a_start_page_whose_script_never_ends_is_a_fault_of_the_system(port: int) -> None:
    driver = ChromiumDriver(serve=lambda: port, timeout_s=1.5)
    with pytest.raises(EnvError, match=r"start page .* cannot be opened: .*closed"):
        open_page(driver, "/busy")
    driver.close()


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_killed_browser_costs_its_episodes_and_no_others(port: int, delay: float) -> None:
    host = BrowserHost(max_contexts=1)
    driver = ChromiumDriver(serve=lambda: port, host=host)
    open_page(driver, "/")
    for pid in host.list_process_ids():
        os.kill(pid, signal.SIGKILL)
    time.sleep(delay)  # the driver hears of it before or after the next action
    with pytest.raises(EnvError, match="the browser"):
        driver.act(WebAction("goto", argument="/form"))
    assert open_page(driver, "/other").title == "Other"
    other = ChromiumDriver(serve=lambda: port, host=host)
    threading.Timer(0.5, driver.close).start()
    assert open_page(other, "/").title == "The Home"  # waited for the only place
    other.close()
    host.close()


@needs_chromium
@pytest.mark.slow
def test_several_threads_share_one_browser(port: int) -> None:
    drivers = [ChromiumDriver(serve=lambda: port) for _ in range(3)]
    titles: list[str] = []

    def play(driver: ChromiumDriver) -> None:
        open_page(driver, "/")
        titles.append(driver.act(WebAction("goto", argument="/other")).title)
        driver.close()

    threads = [threading.Thread(target=play, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert titles == ["Other"] * 3
    rules = write_resolver_rules(AllowedHosts.from_names(["a.test"]), port)
    assert len(find_browser_host().list_process_ids(rules)) == 1


def test_a_missing_browser_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CHROMIUM", "/no/such/browser")
    with pytest.raises(ConfigError, match="install_chromium"):
        find_chromium()


def test_the_number_of_contexts_comes_from_the_memory_and_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(gigabytes: float, cores: int) -> int:
        monkeypatch.setattr(browser, "read_available_bytes", lambda: gigabytes * 2**30)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        return choose_max_contexts()

    assert [choose(0.1, 2), choose(2, 2), choose(64, 2), choose(64, 64)] == [1, 8, 16, 64]


def test_a_process_has_no_more_environments_than_contexts_which_would_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browser, "choose_max_contexts", lambda: 2)
    config = load_config(None, ["env.name=web", "env.options={driver='chromium', size='tiny'}"])
    envs = RunResources(config).envs
    host = BrowserHost()
    assert len(envs.envs) == 2 and host.max_contexts == 3  # a replay has a context beside a full batch
    envs.close()
    host.close()
    with pytest.raises(ConfigError, match="8 episodes under way in one process, but web can have 2"):
        check_places(load_config(config, ["workers.simulators.batch_size=4", "workers.mode=stream"]))
