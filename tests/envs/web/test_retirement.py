"""Browsers are retired: after many contexts, when they hold too much memory, and when they died."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.envs.web.conftest import needs_chromium

from stepwell.envs.web import browser as browsers
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.browser import BrowserHost, HostedBrowser
from stepwell.envs.web.chromium import ChromiumDriver

START = {"headers": {}, "allowed_hosts": ["a.test"]}


@pytest.fixture
def host() -> Iterator[BrowserHost]:
    host = BrowserHost(max_contexts=4)
    yield host
    host.close()


def open_driver(host: BrowserHost, port: int) -> ChromiumDriver:
    driver = ChromiumDriver(serve=lambda: port, host=host)
    assert driver.open("http://a.test/other", **START).title == "Other"
    return driver


def _find_again(hosted: HostedBrowser) -> Callable[[str], Awaitable[HostedBrowser]]:
    """Lead an opener to this browser, as if it had found it before the browser was retired."""

    async def find(rules: str) -> HostedBrowser:
        hosted.num_opening += 1
        return hosted

    return find


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@needs_chromium
@pytest.mark.slow
def test_a_browser_is_replaced_after_many_contexts_and_ends_with_its_last_one(
    host: BrowserHost, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsers, "MAX_USES", 2)
    first, second = open_driver(host, port), open_driver(host, port)
    (worn,) = host.list_process_ids()
    third = open_driver(host, port)
    assert len(host.list_process_ids()) == 2  # the worn one still has two episodes
    assert first.act(WebAction("click", "1")).title == "The Home"
    first.close()
    assert is_running(worn)
    second.close()
    assert worn not in host.list_process_ids() and not is_running(worn)
    assert third.act(WebAction("click", "1")).title == "The Home"
    third.close()


@needs_chromium
@pytest.mark.slow
def test_a_browser_that_holds_too_much_memory_takes_no_new_context(
    host: BrowserHost, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_driver(host, port)
    (kept,) = host.list_process_ids()
    open_driver(host, port).close()
    assert host.list_process_ids() == [kept]  # its memory is as expected
    monkeypatch.setattr(browsers, "LEAK_FACTOR", 0)
    second = open_driver(host, port)
    assert kept in host.list_process_ids() and len(host.list_process_ids()) == 2
    first.close()
    assert not is_running(kept)
    assert second.act(WebAction("click", "1")).title == "The Home"
    second.close()


@needs_chromium
@pytest.mark.slow
def test_a_worn_browser_is_not_ended_while_it_opens_a_context(
    host: BrowserHost, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_driver(host, port).close()
    (worn,) = host.list_browsers()
    (pid,) = host.list_process_ids()
    monkeypatch.setattr(browsers, "MAX_USES", 1)
    worn.num_opening += 1  # as in the middle of `open_context`
    second = open_driver(host, port)
    assert worn.browser.is_connected() and worn in host.list_browsers()
    worn.num_opening -= 1
    with pytest.raises(TypeError):  # an opener that fails is the last user too
        monkeypatch.setattr(host, "_find_browser", _find_again(worn))
        host.run_call(host.open_context("", no_such_option=1), 60)
    assert worn not in host.list_browsers() and not is_running(pid)
    second.close()


@needs_chromium
@pytest.mark.slow
def test_the_memory_of_a_browser_counts_all_its_processes(host: BrowserHost, port: int) -> None:
    driver = open_driver(host, port)
    tags = [hosted.tag for hosted in host.list_browsers()]
    measured = [browsers.measure_memory_mb(tag) for tag in tags]
    assert len(measured) == 1 and 20 < measured[0] < browsers.LEAK_FACTOR * browsers.BROWSER_MB
    assert browsers.measure_memory_mb("--no-such-browser") == 0
    driver.close()


@needs_chromium
@pytest.mark.slow
def test_browsers_that_nobody_uses_end_when_one_with_other_rules_starts(host: BrowserHost) -> None:
    def open_with(rules: str) -> Any:
        return host.run_call(host.open_context(rules), 60)

    used = open_with("MAP a.test 127.0.0.1")
    (kept,) = host.list_process_ids()
    for name in "bcd":
        host.run_call(host.close_context(open_with(f"MAP {name}.test 127.0.0.1")), 60)
    assert kept in host.list_process_ids()
    assert len(host.list_process_ids()) == 3  # the one in use, the newest, and one idle before it
    host.run_call(host.close_context(used), 60)
