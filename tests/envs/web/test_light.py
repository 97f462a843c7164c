"""The light driver: cookies, forms and hosts without a socket, and faults of sites in words for the agent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.envs.web.small_site import SmallSite

from stepwell.core import EnvError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.light import MAX_TABS, LightDriver
from stepwell.envs.web.page import PageView


def open_light(site: Any, url: str = "http://a.test/", **options: Any) -> tuple[LightDriver, PageView]:
    driver = LightDriver(app=site)
    start = {"headers": {"x-episode": "e1"}, "allowed_hosts": ["a.test", "*.b.test:81"]} | options
    return driver, driver.open(url, **start)


def visit(driver: LightDriver, address: str) -> PageView:
    return driver.act(WebAction("goto", argument=address))


def test_cookies_belong_to_one_episode_and_headers_go_with_every_request() -> None:
    site = SmallSite()
    first, _ = open_light(site)
    second, _ = open_light(site)
    assert "user=ann" in visit(first, "/login").text
    assert "user=ann" not in visit(second, "/item").text
    assert all(headers["x-episode"] == "e1" for headers in site.headers)
    assert "user=ann" not in first.open("http://a.test/item", headers={}, allowed_hosts=["a.test"]).text


def test_a_saved_state_brings_its_cookies_to_their_own_host() -> None:
    cookies = [{"name": "s", "value": "1", "domain": ".a.test", "path": "/"}]
    cookies += [{"name": "other", "value": "2", "domain": "x.b.test", "path": "/"}]
    _, view = open_light(SmallSite(), "http://a.test/item", storage_state={"cookies": cookies})
    assert "s=1" in view.text and "other" not in view.text


def test_only_allowed_hosts_and_ports_are_asked() -> None:
    site = SmallSite()
    driver, _ = open_light(site)
    for address in ("http://c.test/", "http://x.b.test/", "http://a.test.evil.example/", "ftp://a.test/"):
        assert "is not a" in visit(driver, address).notice
    assert visit(driver, "http://x.b.test:81/item").notice == ""
    assert set(site.asked) == {"a.test/", "x.b.test/item"}


def test_a_start_page_that_fails_is_a_fault_of_the_system() -> None:
    with pytest.raises(EnvError, match="not allowed here"):
        open_light(SmallSite(), "http://c.test/")
    with pytest.raises(EnvError, match="redirects without end"):
        open_light(SmallSite(), "http://a.test/round")
    with pytest.raises(EnvError, match="call open first"):
        LightDriver().view()


def test_a_site_that_raises_is_told_and_the_page_stays() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/bad":
            raise RuntimeError("no")
        await SmallSite()(scope, receive, send)

    driver, view = open_light(broken)
    after = visit(driver, "/bad")
    assert after.notice == "the site failed: RuntimeError" and after.html == view.html


def test_a_host_that_nobody_serves_is_told() -> None:
    driver = LightDriver(timeout_s=5)
    with pytest.raises(EnvError, match="cannot be reached"):
        driver.open("http://127.0.0.1:9/", headers={}, allowed_hosts=["127.0.0.1:9"])


def test_a_site_is_read_over_http_as_well(site: SmallSite, port: int) -> None:
    driver = LightDriver()
    host = f"127.0.0.1:{port}"
    view = driver.open(f"http://{host}/", headers={}, allowed_hosts=[host])
    assert view.title == "The Home"
    assert "user=ann" in visit(driver, "/login").text
    driver.close()


def test_tabs_are_bounded() -> None:
    driver, _ = open_light(SmallSite())
    views = [driver.act(WebAction("new_tab")) for _ in range(MAX_TABS)]
    assert len(views[-1].tabs) == MAX_TABS and "at most" in views[-1].notice
    assert views[0].html == "" and views[0].tab == 1


async def test_it_works_inside_a_running_loop() -> None:
    driver, view = open_light(SmallSite())
    assert view.title == "The Home"
    driver.close()


@pytest.mark.parametrize("path", ["/file", "/nothing", "/round", "/leave"])
def test_the_page_stays_when_there_is_none_to_show(path: str) -> None:
    driver, view = open_light(SmallSite())
    assert visit(driver, path).url == view.url


def test_a_change_of_one_page_is_not_seen_in_another_with_the_same_html() -> None:
    drivers = [LightDriver(app=SmallSite()) for _ in range(2)]
    start = {"headers": {}, "allowed_hosts": ["a.test"]}
    first, second = (driver.open("http://a.test/form", **start) for driver in drivers)
    assert first == second
    field = next(element.id for element in first.elements if element.text == "Who")
    changed = drivers[0].act(WebAction("type", field, "Zoe"))
    assert "Zoe" in changed.html and changed != first
    assert drivers[1].view() == second
    assert drivers[1].open("http://a.test/form", **start) == second


def test_what_was_typed_stays_when_only_the_fragment_changes() -> None:
    driver = LightDriver(app=SmallSite())
    view = driver.open("http://a.test/form", headers={}, allowed_hosts=["a.test"])
    field = next(element.id for element in view.elements if element.text == "Who")
    driver.act(WebAction("goto", argument="#low"))
    driver.act(WebAction("type", field, "Zoe"))
    view = driver.act(WebAction("go_back"))
    assert view.url == "http://a.test/form" and 'value="Zoe"' in view.html
