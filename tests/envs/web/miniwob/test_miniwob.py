"""MiniWoB++: pages are served with a seed and note their reward once; click tasks are solved by script."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from tests.envs.web.conftest import CHROMIUM

from stepwell.core import ConfigError, InputError
from stepwell.envs.registry import make_env
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.miniwob.options import MiniWobOptions
from stepwell.envs.web.miniwob.pages import find_pages, list_pages, read_file, read_reward
from stepwell.envs.web.miniwob.server import serve_pages
from stepwell.envs.web.miniwob.solvers import CHOOSERS, plan_clicks
from stepwell.envs.web.miniwob.source import MiniWobSource
from stepwell.envs.web.page import PageElement, PageView


def make_view(text: str, *elements: tuple[str, str, str]) -> PageView:
    items = tuple(PageElement(id, tag, said, {}, True) for id, tag, said in elements)
    return PageView("http://miniwob.localhost/", "", "", text, items, ("",), 0)


def test_the_suite_has_130_pages_and_seeds_count_through_them() -> None:
    assert len(list_pages()) == 130
    source = MiniWobSource(MiniWobOptions())
    first, again = source.make_content(None, 3), source.make_content(None, 133)
    assert (first["page"], first["seed"]) == (list_pages()[3], 0)
    assert (again["page"], again["seed"]) == (list_pages()[3], 1)


def test_only_known_pages_are_played() -> None:
    with pytest.raises(ValidationError, match="no page 'click-moon'"):
        MiniWobOptions(pages=("click-moon",))
    source = MiniWobSource(MiniWobOptions(pages=("click-test",)))
    assert source.make_content(None, 5) | {"seed": 5} == source.make_content(None, 5)
    start = source.start({"page": "click-test", "seed": 5})
    assert start.url == "http://miniwob.localhost/miniwob/click-test.html?seed=5"
    assert list(start.allowed_hosts) == ["miniwob.localhost"]
    for wrong in ({"page": "../core", "seed": 1}, {"page": "click-test", "seed": -1}, {"page": "click-test"}):
        with pytest.raises(InputError, match="known 'page'"):
            source.start(wrong)


def test_a_page_with_a_seed_is_the_packages_page_and_a_script() -> None:
    plain = (find_pages() / "miniwob/click-test.html").read_bytes()
    assert read_file("/miniwob/click-test.html", None) == plain
    seeded = read_file("/miniwob/click-test.html", "7")
    assert seeded is not None and seeded.startswith(plain) and b"begin('7')" in seeded
    assert read_file("/core/core.js", "7") == (find_pages() / "core/core.js").read_bytes()


def test_a_path_or_a_seed_leads_nowhere_else() -> None:
    assert read_file("/../__init__.py", None) is None
    assert read_file("/miniwob", None) is None
    with pytest.raises(InputError, match="whole number"):
        read_file("/miniwob/click-test.html", "1');alert('")


def test_the_server_sends_pages_and_404() -> None:
    base = f"http://127.0.0.1:{serve_pages()}"
    assert serve_pages() == serve_pages()
    with urllib.request.urlopen(f"{base}/miniwob/click-test.html?seed=1") as answer:
        assert answer.headers["content-type"] == "text/html" and b"begin('1')" in answer.read()
    for path in ("/miniwob/none.html", "/%2e%2e/__init__.py", "/miniwob/click-test.html?seed=x"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(base + path)


@pytest.mark.parametrize(
    ("html", "reward"),
    [
        ('<!DOCTYPE html><html data-reward="-1" data-reason="">', -1.0),
        ('<html data-reward="0.5"><body>', 0.5),
        ('<html><body><p data-reward="1">', None),
        ('<html><body>&lt;html data-reward="1"&gt;', None),
        ("", None),
    ],
)
def test_the_reward_is_read_from_the_root_alone(html: str, reward: float | None) -> None:
    assert read_reward(html) == reward


def test_a_solver_clicks_what_the_page_names_and_then_exits() -> None:
    choose = plan_clicks("click-checkboxes")
    view = make_view(
        "Select b, c and click Submit.",
        ("1", "input", "a"), ("2", "input", "b"), ("3", "input", "c"), ("4", "button", "Submit"),
    )  # fmt: skip
    assert [choose(view).element for _ in range(3)] == ["2", "3", "4"]
    assert choose(view).name == "exit"
    assert plan_clicks("click-test")(make_view("The episode is over.", ("1", "button", "x"))).name == "exit"


def test_a_task_without_a_solver_says_so() -> None:
    with pytest.raises(ConfigError, match="no scripted solution of 'click-pie'"):
        plan_clicks("click-pie")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """As environments open it: pages that keep nothing share a context."""
    chromium = pytest.importorskip("stepwell.envs.web.chromium")
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    driver = chromium.ChromiumDriver(serve=serve_pages, reuses_context=True)
    yield driver
    driver.close()


def play_page(driver: Any, page: str, seed: int) -> float:
    source = MiniWobSource(MiniWobOptions(pages=(page,)))
    content = source.make_content(None, seed)
    start = source.start(content)
    view = driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
    assert source.judge(view, driver, "") == 0.0
    choose = source.plan(content)
    for _ in range(20):
        action = choose(view)
        if action.name == "exit":
            break
        view = driver.act(action)
    return source.judge(view, driver, "")


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(CHOOSERS))
def test_click_tasks_are_solved_by_script(driver: Any, page: str) -> None:
    assert [play_page(driver, page, seed) for seed in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_a_seed_gives_the_same_page_and_another_seed_another(driver: Any) -> None:
    source = MiniWobSource(MiniWobOptions(pages=("click-link",)))
    texts = []
    for seed in (1, 1, 2):
        start = source.start(source.make_content(None, seed))
        texts.append(driver.open(start.url, headers={}, allowed_hosts=start.allowed_hosts).text)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["goto", "new_tab", "go_back"])
def test_a_page_that_is_loaded_again_gives_no_second_try(driver: Any, way: str) -> None:
    source = MiniWobSource(MiniWobOptions(pages=("click-test-2",)))
    content = source.make_content(None, 0)
    start = source.start(content)
    view = driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
    (wrong,) = [element.id for element in view.elements if element.text == "TWO"]
    view = driver.act(WebAction("click", element=wrong))
    assert "The episode is over." in view.text and source.judge(view, driver, "") == 0.0
    if way == "new_tab":
        driver.act(WebAction("new_tab"))
    if way == "go_back":
        driver.act(WebAction("goto", argument="http://miniwob.localhost/miniwob/click-test.html?seed=1"))
        view = driver.act(WebAction("go_back"))
    else:
        view = driver.act(WebAction("goto", argument=start.url))
    (right,) = [element.id for element in view.elements if element.text == "ONE"] or [""]
    if right:
        view = driver.act(WebAction("click", element=right))
    assert "The episode is over." in view.text and source.judge(view, driver, "") == 0.0
    view = driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
    assert "The episode is over." not in view.text  # the next episode begins anew


@pytest.mark.slow
def test_a_context_that_is_used_again_shows_what_a_fresh_one_shows(driver: Any) -> None:
    driver.close()  # a context ends after 50 pages: not within this test
    other = type(driver)(serve=serve_pages)
    source = MiniWobSource(MiniWobOptions(pages=("click-test-2", "click-link")))
    contexts = []
    for seed in (0, 1, 0, 3):
        start = source.start(source.make_content(None, seed))
        fresh = other.open(start.url, headers={}, allowed_hosts=start.allowed_hosts)
        view = driver.open(start.url, headers={}, allowed_hosts=start.allowed_hosts)
        assert view == fresh
        contexts.append(driver._context)
        (first, *_) = [element.id for element in view.elements]
        assert "The episode is over." in driver.act(WebAction("click", element=first)).text
        assert "no earlier page" in driver.act(WebAction("go_back")).notice
    assert len(set(contexts)) == 1 and other._context not in contexts
    other.close()


@pytest.mark.slow
def test_an_episode_ends_with_the_click_that_decides(driver: Any) -> None:
    pages = {"pages": ["click-test-2"]}
    with make_env("web", {"source": "miniwob", "driver": "chromium", "miniwob": pages}) as env:
        for name, reward in (("ONE", 1.0), ("TWO", 0.0)):
            env.reset(seed=0)
            (button,) = [element.id for element in env._view.elements if element.text == name]
            _, paid, is_over, _, info = env.step([f'do(action="Click", element="{button}")'])
            assert (paid, is_over, info["success"]) == (reward, True, reward == 1.0)


def test_a_field_is_chosen_by_its_number() -> None:
    fields = [("1", "input", ""), ("2", "input", ""), ("3", "input", "")]
    choose = plan_clicks("focus-text-2")
    assert choose(make_view("Focus into the 3rd input textbox.", *fields)).element == "3"
    assert plan_clicks("focus-text")(make_view("Focus into the textbox.", *fields)).element == "1"


@pytest.mark.slow
def test_another_page_of_the_host_pays_nothing(driver: Any) -> None:
    source = MiniWobSource(MiniWobOptions(pages=("click-pie",)))
    start = source.start(source.make_content(None, 0))
    driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
    view = driver.act(WebAction("goto", argument="http://miniwob.localhost/miniwob/click-test.html?seed=1"))
    (button,) = [element.id for element in view.elements if element.tag == "button"]
    view = driver.act(WebAction("click", element=button))
    assert read_reward(driver.raw_html()) == 1.0 and source.judge(view, driver, "") == 0.0
