"""The shop through the environment service, and its pages for people."""

from __future__ import annotations

import copy
import http.client
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, quote, urljoin, urlsplit

import pytest
from starlette.applications import Starlette

from stepwell.config.env_service import EnvServiceConfig
from stepwell.core import ConfigError, Split, Task
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import make_env
from stepwell.envs.shop.browser import create_browser_app
from stepwell.envs.shop.env import ShopEnv
from stepwell.envs.shop.html_pages import write_html_page
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.shop import Shop
from stepwell.envs.shop.view import Page, View
from stepwell.envs.tasks import draw_tasks
from stepwell.services.envs.app import create_env_app
from stepwell.services.http_server import serve_in_thread

from .conftest import WANTED

ALLOWED = {"html", "head", "meta", "style", "title", "body", "p", "h1", "a", "ol", "li", "form", "input"}
TINY = {"size": "tiny"}


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    url, stop = serve_in_thread(create_env_app(EnvServiceConfig(envs=("shop",), env_options={"shop": TINY})))
    yield url
    stop()


@pytest.fixture(scope="module")
def pages(tiny: Shop) -> Iterator[str]:
    app = Starlette()
    app.mount("/shop", create_browser_app(tiny))
    url, stop = serve_in_thread(app)
    yield f"{url}/shop/"
    stop()


def ask(url: str) -> tuple[int, str, http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", f"{parts.path}?{parts.query}")
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text, response


def play_both(one: ShopEnv, other: Any, task: Task, rng: random.Random) -> None:
    assert one.reset(options={"task": task}) == other.reset(options={"task": task})
    over = False
    while not over:
        action = one.random_action(rng)
        if rng.random() < 0.5:
            action = one.oracle()[0]
        if rng.random() < 0.1:
            action = rng.choice(["click[\ud800]", 'search["]', "é" * 300, "click[\x00]"])
        turn = one.step([action])
        assert turn == other.step([action])
        assert one.state() == other.state() and one.oracle() == other.oracle()
        over = turn[2]


def test_a_shop_behind_the_service_is_the_shop_in_this_process(service: str) -> None:
    here = ShopEnv(ShopOptions(size="tiny"))
    with make_env(f"remote:{service}#shop") as there:
        assert there.make_task(there.options, 3) == ShopEnv.make_task(here.options, 3)
        rng = random.Random(0)
        for task in draw_tasks("shop", TINY, Split.TRAIN, 8, seed=0):
            play_both(here, there, task, rng)


def test_the_old_option_url_still_opens_the_shop_behind_a_service(service: str) -> None:
    with pytest.warns(FutureWarning, match="env.name=remote:URL#shop"):
        options = ShopOptions(url=service, max_turns=7)
    task = ShopEnv.make_task(options, 3)
    assert task == ShopEnv.make_task(ShopOptions(size="tiny"), 3)
    with EnvBatch("shop", options, 2) as batch:
        assert all(turn.error is None for turn in batch.reset([task, task]))
        turns = batch.step(range(2), [[env.oracle()[0]] for env in batch.envs])
        assert all("\nclick[next >]" in turn.observation.text for turn in turns)
        assert batch.envs[0].options.max_turns == 7


def test_the_old_option_transport_runs_the_shop_in_this_process() -> None:
    with pytest.warns(FutureWarning, match="own process"):
        env = make_env("shop", {"size": "tiny", "transport": "http"})
    assert env.reset(seed=0) == make_env("shop", TINY).reset(seed=0)


def test_a_copy_goes_its_own_way() -> None:
    env = make_env("shop", TINY)
    env.reset(seed=5)
    ahead = copy.deepcopy(env)
    ahead.step(ahead.oracle()[:1])
    assert ahead.observe() != env.observe() and len(ahead.oracle()) + 1 == len(env.oracle())


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = _Links()
    reader.feed(page)
    return reader.found


def test_people_walk_through_the_shop_by_its_links(pages: str, tiny: Shop) -> None:
    goal, view = tiny.goal(4), View()
    status, page, response = ask(f"{pages}?seed=4")
    assert status == 200 and "default-src 'none'" in (response.getheader("content-security-policy") or "")
    first, *rest = tiny.plan(goal, View()).actions
    packed = quote(json.dumps(view.to_json()))
    words = quote(first.removeprefix("search[").removesuffix("]"))
    status, _, response = ask(f"{pages}go?seed=4&view={packed}&words={words}")
    for action in rest:
        assert status == 303
        where = urljoin(pages, response.getheader("location") or "")
        _, page, _ = ask(where)
        links = [attrs["href"] or "" for tag, attrs in tags(page) if tag == "a"]
        (link,) = [link for link in links if parse_qs(urlsplit(link).query).get("action") == [action]]
        status, _, response = ask(urljoin(where, link))
    _, page, _ = ask(urljoin(pages, response.getheader("location") or ""))
    assert "Score: 1.00" in page


def test_addresses_that_lead_nowhere_are_pages_that_say_so(pages: str) -> None:
    gone = quote(json.dumps(View(Page.ITEM, "x", 0, "<b>zz</b>").to_json()))
    for path in (f"page?view={gone}", f"go?view={gone}&action=click[x]"):
        status, page, _ = ask(pages + path)
        assert status == 400 and "there is no product &#x27;&lt;b&gt;zz&lt;/b&gt;&#x27;" in page
    assert ask(f"{pages}page?view=%ff")[0] == ask(f"{pages}page?view={'[' * 9000}")[0] == 400
    assert ask(f"{pages}?seed=<script>")[0] == ask(f"{pages}?seed=-1")[0] == 400


def test_texts_of_products_are_text_on_every_page(small: Shop) -> None:
    item = View(Page.ITEM, "<script>q</script>", 0, "A5", note="<b>note</b>", chosen=(("<u>", "<s>"),))
    details = [
        View(Page.DETAIL, "q", 0, "A5", detail=name) for name in ("description", "features", "attributes")
    ]
    results = View(Page.RESULTS, "script alert <i>")
    for view in (View(note="<i>"), results, item, *details, View(Page.BOUGHT, "q", 0, "A5")):
        page = write_html_page(small.page(WANTED, view), 0)
        assert {tag for tag, _ in tags(page)} <= ALLOWED | {"button"}
        assert not any(name.startswith("on") for _, attrs in tags(page) for name in attrs)
    assert "&lt;script&gt;alert" in write_html_page(small.page(WANTED, item), 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_serves_pages_and_to_this_machine_also_the_environment(host: str) -> None:
    run = "import sys; from stepwell.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "serve", "shop", "--size", "tiny", "--port", "0", "--host", host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip().replace("0.0.0.0", "127.0.0.1")
        try:
            assert "another task" in ask(f"{url}/shop/?seed=1")[1]
            if host == "127.0.0.1":
                with make_env(f"remote:{url}#shop") as env:
                    assert env.reset(seed=1) == make_env("shop", TINY).reset(seed=1)
            else:
                with pytest.raises(ConfigError):
                    make_env(f"remote:{url}#shop")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def test_options_about_products_are_checked() -> None:
    with pytest.raises(ConfigError, match="bring their own products"):
        make_env("shop", {"webshop_files": "x", "size": "tiny"})
