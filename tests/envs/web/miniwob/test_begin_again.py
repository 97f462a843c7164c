"""Pages of MiniWoB++ that begin again in place show what a freshly loaded page shows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.envs.web.conftest import CHROMIUM

from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.miniwob.options import MiniWobOptions
from stepwell.envs.web.miniwob.pages import BEGIN_AGAIN, read_file
from stepwell.envs.web.miniwob.server import serve_pages
from stepwell.envs.web.miniwob.source import MiniWobSource

PAGES = tuple(sorted(BEGIN_AGAIN))


def test_only_pages_of_the_list_offer_to_begin_again() -> None:
    for page, is_offered in (("click-button", b"if (true)"), ("click-pie", b"if (false)")):
        html = read_file(f"/miniwob/{page}.html", "7")
        assert html is not None and is_offered + b" { window.beginAgain" in html


def open_task(driver: Any, source: MiniWobSource, seed: int) -> Any:
    start = source.start(source.make_content(None, seed))
    return driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_page_that_begins_again_shows_what_a_fresh_one_shows() -> None:
    chromium = pytest.importorskip("stepwell.envs.web.chromium")
    source = MiniWobSource(MiniWobOptions(pages=PAGES))
    loading = chromium.ChromiumDriver(serve=serve_pages)  # a context of its own for every episode
    driver = chromium.ChromiumDriver(serve=serve_pages, reuses_context=True)
    for seed in range(2 * len(PAGES)):
        fresh, view = open_task(loading, source, seed), open_task(driver, source, seed)
        assert view == fresh
        if fresh.elements[0].tag == "input":  # what was typed must not be there in the next episode
            driver.act(WebAction("type", element="1", argument="left behind"))
        decisive = [each.id for each in fresh.elements if each.tag != "input"] or ["1"]
        last = WebAction("click", element=decisive[-1])
        ended = driver.act(last)
        assert source.has_ended(ended)
        if fresh.elements[0].tag != "input":
            assert source.judge(ended, driver, "") == source.judge(loading.act(last), loading, "")
    assert driver._num_reuses == len(PAGES) - 1  # each page was loaded once
    assert driver._num_restarts == len(PAGES)
    loading.close()
    driver.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_tabs_that_are_put_aside_count_as_contexts_and_give_way_to_them() -> None:
    chromium = pytest.importorskip("stepwell.envs.web.chromium")
    host = chromium.BrowserHost(max_contexts=3)
    source = MiniWobSource(MiniWobOptions(pages=PAGES[:4]))
    first, second = (
        chromium.ChromiumDriver(serve=serve_pages, reuses_context=True, host=host) for _ in range(2)
    )

    def count_tabs(driver: Any) -> int:
        return len(driver._context.pages)

    for seed in range(4):
        open_task(first, source, seed)
    assert count_tabs(first) == 3  # one in use, two put aside; a third had no room
    open_task(second, source, 0)
    assert (count_tabs(first), count_tabs(second)) == (2, 1)
    for seed in range(1, 8):
        assert open_task(first, source, seed) == open_task(second, source, seed)
        assert count_tabs(first) + count_tabs(second) <= 3
    first.close()
    second.close()
    host.close()
