"""Locators without a browser: all of the package's can be read, and give what Chromium gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.web.conftest import CHROMIUM

from stepwell.core import InputError
from stepwell.envs.web.webarena.loader import load_entries
from stepwell.envs.web.webarena.locator_values import read_html_value
from stepwell.envs.web.webarena.locators import parse_locator
from stepwell.envs.web.webarena.page_content import call_function
from stepwell.envs.web.webarena.site_functions import find_member_role, find_post_url
from stepwell.envs.web.webarena.task import read_task

# One element for every selector of the published tasks, with made-up contents.
PAGE = """<!doctype html><html><head><title>t</title></head><body>
<div id="content" class="nav"><div id="sidebar_content"><p>First <b>bold</b></p><p>Second</p></div>
<select class="routing_engines"><option>Car</option><option selected>Foot</option></select></div>
<div id="content-body">Body <i>of</i> it<br>next line</div>
<form><input name="route_from" value="here"><input name="route_to" value="there"></form>
<div class="submission__vote"><form class="vote vote--up"></form></div>
<div class="submission__inner">Inner <a href="/one">one</a><img src="two.png"><a href="/three">three</a>
<h1 class="submission__title">Title</h1><div class="submission__body"><p>Para</p></div></div>
<input name="product[price]" value="12.50"><input name="product[quantity_and_stock_status][qty]" value="4">
<select name="product[quantity_and_stock_status][is_in_stock]"><option value="1">In</option>
<option value="0" selected>Out</option></select>
<select name="product[status]"><option value="2">x</option></select><input name="product[name]" value="Shirt">
<select name="product[color]"><option value="49">Black</option></select>
<select name="product[size]"><option value="167">S</option></select><input name="product[sale]" value="1">
<div class="products-grid wishlist"><ol><li>Lamp</li><li>Chair</li></ol></div>
<textarea title="What’s on your mind?">busy
today</textarea><span class="visibility-icon" title="Private - only you"></span>
<div class="order-details-items ordered"><table><tr><th>Name</th><th>Qty</th></tr>
<tr><td>Lamp</td><td>2</td></tr></table></div>
<input id="sales_report_from" value="1/1/2022"><input id="sales_report_to" value="2/1/2022">
<ul id="notes-list"><li>old</li><li><div class="timeline-discussion-body">lgtm</div></li></ul>
<div class="detail-page-description">Request <a class="gl-font-monospace">topic</a> into
<a class="gl-font-monospace">main</a></div>
<div class="block reviewer">Roshan</div><div class="user-bio__biography">I am</div>
<div class="cover-status"><span>x</span> busy now</div>
<div class="profile-header"><a itemprop="url">https://me.test</a></div>
<div class="data item content">Details</div><div class="product attribute overview">
<div itemprop="description">More</div></div><div id="order_status">Complete</div>
<input name="title" value="Issue">
<div class="user-profile">Emma</div><div data-index="configurable">Conf</div>
<div class="box box-address-billing"><div class="box-content">Street 1<br>Town</div></div>
<div class="box box-address-shipping"><div class="box-content">Street 2<br>Town</div></div>
<textarea id="forum_description">about</textarea><textarea id="forum_sidebar">side</textarea>
<div class="block start_date">Start</div><div class="block due_date">Due</div>
<div id="sidebar"><section>Sec<ul><li>a</li><li>b</li></ul></section></div>
<h2 data-qa-selector="title_content">T</h2><div data-testid="sidebar-due-date">Jan 1</div>
<div class="block assignee">me</div><div class="admin__data-grid-filters-current">Status: x</div>
<div data-role="selected-option">Sel</div><div data-index="category_ids">Cat</div>
<input name="name" value="Sale">
<select name="website_ids" multiple><option selected>Main</option></select>
<select name="customer_group_ids" multiple><option>a</option><option selected>b</option></select>
<select name="simple_action"><option value="by_percent">%</option></select>
<input name="discount_amount" value="20">
<div id="order_history_block"><ul class="note-list"><li><div class="note-list-comment">note</div></li>
<li>older</li></ul></div><div class="home-panel-description-markdown">desc</div>
<div class="comment__body">comment</div><select name="status_id"><option value="1">ok</option></select>
<input type="checkbox" title="General Subscription" checked><div data-qa-selector="projects_list">p</div>
<input name="plain"><p>One   two
three</p><script>var hidden = 1</script><div style="display: none">gone</div></body></html>"""
MORE = (
    "document.querySelector('.missing').outerText",
    "document.querySelector('.missing')?.outerText",
    "document.querySelector('.missing')?.outerText || 'none'",
    "document.querySelector('[name=\"plain\"]').value",
    "document.querySelector('div').getAttribute('nothing')",
    "document.querySelectorAll('li').length",
    "[...document.querySelectorAll('li')].map(e => e.textContent).join('|')",
    "document.querySelector('#content').firstElementChild.outerText",
)


def list_locators() -> list[str]:
    """Every locator of the published tasks that is an expression."""
    targets = [target for entry in load_entries() for target in read_task(entry).targets]
    return sorted({t.locator for t in targets if t.locator and not t.locator.startswith("func:")})


def test_every_published_locator_is_found_on_a_page_that_has_its_parts() -> None:
    locators = list_locators()
    assert len(locators) == 62
    assert [locator for locator in locators if not read_html_value(PAGE, locator)] == []
    assert {read_html_value("<p>another page</p>", locator) for locator in locators} == {""}


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_content(PAGE)
        yield page
        browser.close()


def read_in_browser(page: Any, locator: str) -> str:
    try:
        return str(page.evaluate(f"() => {locator}"))
    except Exception as error:
        assert "null" in str(error) or "undefined" in str(error), error
        return ""


@pytest.mark.slow
def test_locators_give_what_chromium_gives(page: Any) -> None:
    different = {
        locator: (expected, found)
        for locator in [*list_locators(), *MORE]
        if (expected := read_in_browser(page, locator)) != (found := read_html_value(PAGE, locator))
    }
    assert different == {}


@pytest.mark.parametrize(
    "locator",
    [
        "document.",
        "document.cookie",
        "fetch('x')",
        "document.querySelector('a'",
        "document[0",
        "1 +",
        "(",
        "a => b",
    ],
)
def test_what_is_outside_the_language_is_refused(locator: str) -> None:
    with pytest.raises(InputError, match="locator"):
        read_html_value(PAGE, locator)


@given(st.text(max_size=60))
def test_any_text_is_a_locator_or_is_refused(text: str) -> None:
    try:
        parse_locator(text)
    except InputError as error:
        assert "locator" in str(error)


def test_functions_are_names_with_texts_and_nothing_else() -> None:
    functions = {"reddit_get_post_url": find_post_url}
    url = "http://forum.test/f/books/123/title/-/comment/4"
    call = "func:reddit_get_post_url('__last_url__')"
    assert call_function(call, functions, url=url) == "http://forum.test/f/books/123/"
    assert call_function(call, functions, url="http://forum.test/") == "http://forum.test/"
    for text in (
        "__import__('os')",
        "reddit_get_post_url(open('x'))",
        "1",
        "reddit_get_post_url",
        "f(",
        "(f)()()",
    ):
        with pytest.raises(InputError):
            call_function(f"func:{text}", functions, url=url)


def test_a_quote_in_the_last_url_does_not_end_the_text() -> None:
    functions = {"reddit_get_post_url": find_post_url}
    hostile = "http://forum.test/f/b/1/');__import__('os')"
    assert call_function("func:reddit_get_post_url('__last_url__')", functions, url=hostile).endswith(
        "/f/b/1/"
    )


def test_the_role_of_a_member_is_read_from_its_row() -> None:
    row = "<tr><td data-label='Account'><span class='gl-avatar-labeled-sublabel'>@{}</span></td>"
    role = "<td class='col-max-role'><span>{}</span></td></tr>"
    html = (
        f"<table>{row.format('ann')}{role.format('Owner')}{row.format('bob')}{role.format('Guest')}</table>"
    )
    assert [find_member_role(html, name) for name in ("ann", "bob", "eve")] == ["Owner", "Guest", ""]
