"""The shop over HTTP: the same as in this process, for many worlds at once; its failures are the system's."""

from __future__ import annotations

import copy
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from stepwell.core import ConfigError, EnvError, InputError, Split, Task
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import make_env
from stepwell.envs.shop.client import RemoteShop
from stepwell.envs.shop.env import ShopEnv
from stepwell.envs.shop.hosting import HostedShop, hosted_shop
from stepwell.envs.shop.html_pages import html_page
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.server import MAX_BODY_BYTES, create_shop_app
from stepwell.envs.shop.shop import Shop
from stepwell.envs.shop.view import Page, View
from stepwell.envs.tasks import draw_tasks
from stepwell.services.http_server import serve_in_thread

from .conftest import WANTED

ALLOWED = {"html", "head", "meta", "style", "title", "body", "p", "h1", "a", "ol", "li", "form", "input"}
PATH = "shop"


@pytest.fixture(scope="module")
def hosted() -> Iterator[ShopEnv]:
    env = ShopEnv(ShopOptions(size="tiny", transport="http"))
    env.reset(seed=0)
    yield env
    env.close()


def url_of(env: ShopEnv) -> str:
    assert isinstance(env.counter, HostedShop)
    return env.counter.url


def ask(url: str, path: str, body: bytes | None = None) -> tuple[int, str, http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET" if body is None else "POST", path, body)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text, response


def play_both(one: ShopEnv, other: ShopEnv, task: Task, rng: random.Random) -> None:
    assert one.reset(options={"task": task}) == other.reset(options={"task": task})
    over = False
    while not over:
        state = rng.getstate()
        action = one.random_action(rng)
        rng.setstate(state)
        assert other.random_action(rng) == action
        if rng.random() < 0.5:
            action = one.oracle()[0]
        if rng.random() < 0.1:
            action = rng.choice(["click[\ud800]", 'search["]', "é" * 300, "click[\x00]"])
        turn = one.step([action])
        assert turn == other.step([action])
        assert one.state() == other.state() and one.oracle() == other.oracle()
        assert one.golden_steps() == other.golden_steps()
        over = turn[2]


def test_a_shop_over_http_is_the_shop_in_this_process(hosted: ShopEnv) -> None:
    here = ShopEnv(ShopOptions(size="tiny"))
    rng = random.Random(0)
    for task in draw_tasks(PATH, {"size": "tiny"}, Split.TRAIN, 15, seed=0):
        play_both(here, hosted, task, rng)


def test_worlds_with_an_address_share_the_shop_and_need_no_catalogue_of_their_own(hosted: ShopEnv) -> None:
    options = ShopOptions(url=url_of(hosted), max_turns=7)
    assert ShopEnv.make_task(options, 3) == ShopEnv.make_task(hosted.options, 3)
    with EnvBatch(PATH, options, 4) as batch:
        tasks = [ShopEnv.make_task(options, seed) for seed in range(4)]
        assert all(turn.error is None for turn in batch.reset(tasks))
        shops = {id(env.counter) for env in batch.envs}
        turns = batch.step(range(4), [[env.oracle()[0]] for env in batch.envs])
        assert len(shops) == 1 and all("\nclick[next >]" in turn.observation.text for turn in turns)


def test_many_threads_may_ask_at_once(hosted: ShopEnv) -> None:
    shop = RemoteShop.at(url_of(hosted), 10.0)
    goals = [shop.goal(seed) for seed in range(8)]
    expected = [shop.enter(goal) for goal in goals]
    seen: list[Any] = [None] * 8

    def visit(number: int) -> None:
        seen[number] = shop.enter(goals[number])

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == expected


def test_a_copy_of_a_world_goes_its_own_way(hosted: ShopEnv) -> None:
    hosted.reset(seed=5)
    ahead = copy.deepcopy(hosted)
    ahead.step(ahead.oracle()[:1])
    assert ahead.observe() != hosted.observe() and len(ahead.oracle()) + 1 == len(hosted.oracle())


def test_worlds_of_one_process_share_a_server_until_the_last_is_closed() -> None:
    options = ShopOptions(size="tiny", num_products=60, transport="http")
    one, other = ShopEnv(options), ShopEnv(options)
    one.reset(seed=0)
    other.reset(seed=0)
    shop = one.counter
    assert isinstance(shop, HostedShop) and other.counter is shop
    one.close()
    one.close()
    assert shop.is_up and other.step(["search[cup]"])[0].text
    other.close()
    assert not shop.is_up
    with pytest.raises(EnvError, match="cannot be reached"):
        shop.enter(WANTED)


def test_a_server_that_dies_is_an_error_of_the_system_and_the_next_episode_gets_another() -> None:
    with ShopEnv(ShopOptions(size="tiny", num_products=60, page_size=5, transport="http")) as env:
        env.reset(seed=0)
        assert isinstance(env.counter, HostedShop)
        env.counter.process.kill()
        with pytest.raises(EnvError, match="cannot be reached"):
            env.step(["search[cup]"])
        env.reset(seed=0)
        assert "\nclick[next >]" in env.step(["search[cup]"])[0].text


def test_a_server_that_cannot_start_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvError, match="did not start"):
        hosted_shop(ShopOptions(size="tiny", num_products=61, transport="http"), object)


def test_an_address_where_nobody_listens_is_an_error_of_the_system() -> None:
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    task = ShopEnv.make_task(ShopOptions(size="tiny"), 0)
    batch = EnvBatch(PATH, {"url": url}, 1)
    (turn,) = batch.reset([task])
    assert isinstance(turn.error, EnvError) and "cannot be reached" in str(turn.error)


class _Other:
    """Something that listens and is no shop: it answers every call with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller:
                caller.recv(65536)
                caller.sendall(self._answer)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "is no Stepwell shop"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", "is no Stepwell shop"),
        (b'HTTP/1.1 500 Oh\r\ncontent-length: 15\r\n\r\n{"detail":"no"}', ": no"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "is no page"),
        (b"\x00\x01 nonsense\r\n\r\n", "cannot be reached"),
        (b"", "cannot be reached"),
    ],
)
def test_what_is_no_shop_is_an_error_of_the_system(answer: bytes, problem: str) -> None:
    other = _Other(answer)
    try:
        with pytest.raises(EnvError, match=problem):
            RemoteShop(other.url, 5.0).enter(WANTED)
    finally:
        other.close()


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EnvError, match="timed out"):
            RemoteShop(url, 0.1).about()


def test_a_connection_that_broke_between_calls_is_opened_again(hosted: ShopEnv) -> None:
    shop = RemoteShop(url_of(hosted), 10.0)
    about = shop.about()
    shop._idle[0].sock.close()
    goal = shop.goal(0)
    assert shop.enter(goal).text.startswith(f"{goal.instruction}\n")
    assert about == hosted.counter.about()


@pytest.mark.parametrize(
    ("path", "body", "status", "problem"),
    [
        ("/step", b"nonsense", 400, "the body is not JSON"),
        ("/step", b"[]", 400, "must be a JSON object"),
        ("/step", b"[" * 100_000, 400, "not JSON"),
        ("/step", b"{}", 400, "action must be a text"),
        ("/enter", b'{"goal": 3}', 400, "a goal of shop"),
        ("/goal", b'{"seed": "x"}', 400, "seed must be a whole number"),
        ("/goal", b'{"seed": -1}', 400, "seed must lie between"),
        ("/goal", b'{"seed": Infinity}', 400, "seed must be a whole number"),
        ("/state", json.dumps({"goal": WANTED.to_json(), "view": {}}).encode(), 400, "a view of shop"),
        ("/enter", b" " * (MAX_BODY_BYTES + 1), 413, "at most"),
        ("/nowhere", b"{}", 404, "Not Found"),
    ],
)
def test_calls_that_are_none_are_refused_with_a_sentence(
    hosted: ShopEnv, path: str, body: bytes, status: int, problem: str
) -> None:
    got, text, _ = ask(url_of(hosted), path, body)
    assert got == status and problem in json.loads(text)["detail"]


def test_a_mistake_of_the_caller_stays_one(hosted: ShopEnv) -> None:
    with pytest.raises(InputError, match="there is no product 'zz'"):
        hosted.counter.state(WANTED, View(Page.ITEM, "x", 0, "zz"))


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


def test_people_walk_through_the_shop_by_its_links(hosted: ShopEnv) -> None:
    url, shop = url_of(hosted), hosted.counter
    goal, view = shop.goal(4), View()
    status, page, response = ask(url, "/?seed=4")
    assert status == 200 and "default-src 'none'" in (response.getheader("content-security-policy") or "")
    first, *rest = shop.plan(goal, View()).actions
    packed = quote(json.dumps(view.to_json()))
    words = quote(first.removeprefix("search[").removesuffix("]"))
    status, _, response = ask(url, f"/go?seed=4&view={packed}&words={words}")
    for action in rest:
        assert status == 303
        _, page, _ = ask(url, response.getheader("location") or "")
        links = [attrs["href"] or "" for tag, attrs in tags(page) if tag == "a"]
        (link,) = [link for link in links if parse_qs(urlsplit(link).query).get("action") == [action]]
        status, _, response = ask(url, link)
    _, page, _ = ask(url, response.getheader("location") or "")
    assert "Score: 1.00" in page


def test_addresses_that_lead_nowhere_are_pages_that_say_so(hosted: ShopEnv) -> None:
    gone = quote(json.dumps(View(Page.ITEM, "x", 0, "<b>zz</b>").to_json()))
    for path in (f"/page?view={gone}", f"/go?view={gone}&action=click[x]"):
        status, page, _ = ask(url_of(hosted), path)
        assert status == 400 and "there is no product &#x27;&lt;b&gt;zz&lt;/b&gt;&#x27;" in page
    assert ask(url_of(hosted), "/page?view=%ff")[0] == 400
    assert ask(url_of(hosted), "/?seed=<script>")[0] == 400
    assert ask(url_of(hosted), "/health")[1] == '{"status":"ok"}'


def test_texts_of_products_are_text_on_every_page(small: Shop) -> None:
    item = View(Page.ITEM, "<script>q</script>", 0, "A5", note="<b>note</b>", chosen=(("<u>", "<s>"),))
    details = [
        View(Page.DETAIL, "q", 0, "A5", detail=name) for name in ("description", "features", "attributes")
    ]
    results = View(Page.RESULTS, "script alert <i>")
    for view in (View(note="<i>"), results, item, *details, View(Page.BOUGHT, "q", 0, "A5")):
        page = html_page(small.page(WANTED, view), 0)
        assert {tag for tag, _ in tags(page)} <= ALLOWED | {"button"}
        assert not any(name.startswith("on") for _, attrs in tags(page) for name in attrs)
    assert "&lt;script&gt;alert" in html_page(small.page(WANTED, item), 0)


def test_the_application_runs_under_the_projects_own_server(small: Shop) -> None:
    url, stop = serve_in_thread(create_shop_app(small))
    try:
        assert RemoteShop(url, 5.0).enter(WANTED) == small.enter(WANTED)
    finally:
        stop()


def test_the_command_serves_a_shop_until_it_is_interrupted() -> None:
    run = "import sys; from stepwell.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "serve", "shop", "--size", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        about = RemoteShop(url, 10.0).about()
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert about["num_products"] == 300


def test_options_about_addresses_are_checked() -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        make_env(PATH, {"url": "ftp://x"})
    with pytest.raises(ConfigError, match="bring their own products"):
        make_env(PATH, {"webshop_files": "x", "size": "tiny"})
