"""Every page of our own sites, and what can be done on it: found by the light driver, for `web_parity.py`.

A page is what an address shows to a person: logged in, or not. From the first page on, every link is
followed, and every form that asks for a page (search, filters, order) is sent with every option of each menu
and with several words, one change at a time. A route is asked for from every place to one that is far down
the list, by every means. Links that log out or lead to another site are not followed.
For a visitor, who is not logged in, one page of each kind is enough: what is refused, and what is shown.
Of a visitor's effects, those of buttons are taken, which are refused, and those that nobody else has.

A kind of page is the route that answers it, the names in its query, and whether a person is logged in. An
effect is a route, whether a person is logged in, and a kind of action (`list_actions`): what a click on the
button "Apply" does there.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.page import PageElement, PageView
from stepwell.envs.web.sites.app import find_route
from stepwell.envs.web.sites.pages import SITES as PAGES
from stepwell.envs.web.sites.source import SitesSource, find_host
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import make_content

KEYS = ("Enter", "PageDown", "PageUp", "Home", "End")
EMPTY = ("scroll", "new_tab", "tab_focus", "close_tab", "goto", "go_back", "go_forward", "press")
TEXTS = ("red", "7", "ann", "a & b <c>", "2026-01-31", "")
WORDS = ("", "a", "red", "no such words")  # that searches are asked for


class Effect(NamedTuple):
    """A kind of action on a route, and a page on which it can be done."""

    url: str
    key: str


@dataclass(slots=True)
class SiteMap:
    """The pages of a site, in an order in which kinds take turns, and one page for each effect."""

    pages: list[str]
    effects: list[Effect]
    num_unread: int = 0  # addresses that were found and not opened any more


def start_content(site: str, size: str) -> dict[str, Any]:
    """A task that starts on a site's first page with a person logged in."""
    found = next(
        t for t in TEMPLATES.values() if t.site == site and t.is_logged_in and t.start == "/" and t.sample
    )
    return make_content(found, random.Random(0), size, 0)


def name_site(site: str, path: str) -> str:
    """An address on a site."""
    return f"http://{site}.localhost{path}"


@contextmanager
def open_light(site: str, size: str) -> Iterator[LightDriver]:
    """The light driver on a snapshot of its own."""
    source = SitesSource()
    start = source.start(start_content(site, size))
    driver = LightDriver(start.app)
    try:
        driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
        yield driver
    finally:
        driver.close()
        source.close()


def list_places(size: str) -> list[str]:
    """The names of all places, in the order of the map."""
    episode = find_host(0, size).open_episode()
    try:
        return [row[0] for row in episode.query("SELECT name FROM places ORDER BY id")]
    finally:
        episode.close()


def map_site(site: str, size: str, *, is_visitor: bool = False, max_visits: int = 0) -> SiteMap:
    """All pages of a site; for a visitor, one of each kind, and what only a visitor can do there.

    With `max_visits`, no more than so many pages are opened to find others.
    """
    first = [name_site(site, "/"), name_site(site, "/login"), name_site(site, "/no/such/page")]
    known = map_site(site, size, max_visits=max_visits) if is_visitor else SiteMap([], [])
    first = [*first, *choose_examples(known.pages)]
    done = {(name_route(effect.url).split(" [")[0], effect.key) for effect in known.effects}
    seen, waiting = set(first), deque(dict.fromkeys(first))
    by_kind: dict[str, list[str]] = {}
    effects: dict[tuple[str, str], Effect] = {}
    places = list_places(size)
    with open_light(site, size) as driver:
        if is_visitor:
            driver.act(WebAction("goto", argument=name_site(site, "/logout")))
        for _ in range(max_visits) if max_visits else itertools.count():
            if not waiting:
                break
            url = waiting.popleft()
            view = driver.act(WebAction("goto", argument=url))
            kind = name_kind(url, is_visitor)
            by_kind.setdefault(kind, []).append(url)
            for key, _ in list_actions(view, random.Random(0)):
                if (what := (kind.split(" [")[0], key)) not in done or key.startswith("click button"):
                    effects.setdefault(what, Effect(url, key))
            for path in () if is_visitor else (*list_links(view), *list_forms(driver.raw_html(), places)):
                target = name_site(site, path)
                if target not in seen and not re.match(r"/(logout|sites/)", path):
                    seen.add(target)
                    waiting.append(target)
    return SiteMap(take_turns(by_kind.values()), list(effects.values()), len(waiting))


def take_turns(lists: Iterable[list[str]]) -> list[str]:
    """The items of several lists: the first ones, the second ones, …"""
    queues, found = [deque(one) for one in lists], list[str]()
    while queues := [one for one in queues if one]:
        found += [one.popleft() for one in queues]
    return found


def choose_examples(urls: Iterable[str]) -> list[str]:
    """One page of each kind."""
    return list({name_kind(url, False): url for url in urls}.values())


def name_kind(url: str, is_visitor: bool) -> str:
    """The kind of a page."""
    return name_route(url) + (" (visitor)" if is_visitor else "")


def name_route(url: str) -> str:
    """The route that answers an address, and the names in its query."""
    parts = urlsplit(url)
    site = next((site for site in PAGES if parts.hostname == f"{site.name}.localhost"), None)
    if site is None:
        return url
    route, _ = find_route(site, "GET", unquote(parts.path))
    return f"{site.name} {route.path} {sorted(key for key, _ in parse_qsl(parts.query))}"


def list_links(view: PageView) -> Iterator[str]:
    """The paths that links of a page lead to."""
    for element in view.elements:
        href = element.attributes.get("href", "")
        if href.startswith("/"):
            yield href


def list_forms(html: str, places: list[str]) -> Iterator[str]:
    """The paths that forms which ask for a page lead to: every value of each field, one by one."""
    for form in LexborHTMLParser(html).css("form"):
        if (form.attributes.get("method") or "get").lower() != "get":
            continue
        fields = dict(list_fields(form))
        if "to" in fields:
            (start,) = fields["from"]
            fields["to"] = (places[(places.index(start) + len(places) // 2) % len(places)], *fields["to"])
        present = {name: values[0] for name, values in fields.items()}
        for name, values in fields.items():
            for value in values:
                yield f"{form.attributes.get('action')}?{urlencode(present | {name: value})}"


def list_fields(form: LexborNode) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The fields of a form, each with the values it is sent with."""
    for node in form.css("input, select, textarea"):
        name = node.attributes.get("name") or ""
        if node.tag == "select":
            yield name, tuple(o.attributes.get("value") or o.text() for o in node.css("option"))
        elif node.attributes.get("type") == "hidden":
            yield name, (node.attributes.get("value") or "",)
        else:
            yield name, WORDS


def list_actions(view: PageView, rng: random.Random) -> Iterable[tuple[str, WebAction]]:
    """What can be done here: a key of the kind of action, and the action."""
    for element in view.elements:
        kind = f"{element.tag}:{element.attributes.get('type', '')}:{element.attributes.get('name', '')}"
        label = element.text if element.tag == "button" else ""
        if "Log out" not in element.text:
            yield f"click {kind} {label}", WebAction("click", element.id)
        yield f"hover {element.tag}", WebAction("hover", element.id)
        if element.tag in ("input", "textarea"):
            yield f"type {kind}", WebAction("type", element.id, rng.choice(TEXTS))
            yield f"search {kind}", WebAction("search", element.id, rng.choice(TEXTS))
        if element.tag == "select":
            option = choose_option(element, rng)
            yield f"select {kind}", WebAction("select_dropdown_option", element.id, option)
    for name in EMPTY:
        arguments = {
            "scroll": ("up", "down"),
            "press": KEYS,
            "goto": ("/", "/search?q=a", "/no/such/page", "http://example.com/"),
            "tab_focus": ("0", "1", "5"),
        }.get(name, ("",))
        for argument in arguments:
            yield f"{name} {argument}", WebAction(name, argument=argument)
    yield "click nothing", WebAction("click", "999")


def choose_option(element: PageElement, rng: random.Random) -> str:
    """An option of a menu, or one that is not there."""
    return rng.choice([*element.attributes.get("options", "").split("\n"), "no such option"]) or "all"
