"""The web environment on a source of its own: one action a turn, judged at the exit, faults classified."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.envs.web.conftest import needs_chromium
from tests.envs.web.small_site import ScriptSite

from stepwell.cli.main import main
from stepwell.core import EnvError, InputError, Split, Task
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import make_env
from stepwell.envs.web import sources
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.options import WebOptions
from stepwell.envs.web.page import PageView
from stepwell.envs.web.short_page import shorten_page
from stepwell.envs.web.sources import TaskStart


class ItemSource:
    """Open an item and tell its number."""

    site = ScriptSite()
    port = 0

    def make_content(self, options: Any, seed: int) -> dict[str, Any]:
        number = seed % 50
        split = "train" if number % 2 else "parameters"
        return {"number": number, "instruction": f"Open item {number} and tell its number.", "split": split}

    def start(self, content: Mapping[str, Any]) -> TaskStart:
        self.content = content
        url = content.get("url", "http://a.test/list")
        return TaskStart(url, allowed_hosts=("a.test",), app=self.site, serve=lambda: self.port)

    def judge(self, view: PageView, driver: Any, answer: str) -> float:
        return float(view.title == "Item" and answer == str(self.content["number"]))

    def plan(self, content: Mapping[str, Any]) -> Callable[[PageView], WebAction]:
        def choose_action(view: PageView) -> WebAction:
            name = f"Item {content['number']}"
            found = next((e.id for e in view.elements if e.text == name), None)
            number = str(content["number"])
            return (
                WebAction("click", found) if found else WebAction("exit", argument=number, note="it is open")
            )

        return choose_action

    def close(self) -> None:
        self.content = {}


@pytest.fixture(autouse=True)
def item_source(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our source stands in for the sites under their name."""
    monkeypatch.setattr(ItemSource, "port", port)
    monkeypatch.setitem(sources.SOURCES, "sites", f"{__name__}:ItemSource")
    monkeypatch.setattr(sources, "import_module", lambda name: __import__("sys").modules[name])
    yield


def make_web(**options: Any) -> WebEnv:
    return WebEnv(WebOptions(**options))


def test_the_oracle_solves_and_random_play_does_not() -> None:
    with make_web() as env:
        for seed in range(5):
            env.reset(seed=seed)
            reward, is_over = 0.0, False
            while not is_over:
                _, reward, is_over, _, info = env.step(env.oracle())
            assert reward == 1.0 and info["success"] is True
        rng, solved = random.Random(0), 0.0
        for seed in range(5):
            env.reset(seed=seed)
            is_over = False
            while not is_over:
                _, reward, is_over, _, _ = env.step([env.random_action(rng)])
                solved += reward
        assert solved <= 1


def test_after_another_action_the_oracle_starts_again_from_the_first_page() -> None:
    with make_web() as env:
        env.reset(seed=3)
        env.step(['do(action="Click", element="8")'])
        assert env.oracle() == env.oracle() == ['do(action="Goto", argument="http://a.test/list")']
        reward, is_over = 0.0, False
        while not is_over:
            _, reward, is_over, _, _ = env.step(env.oracle())
        assert reward == 1.0


def test_a_page_can_be_written_in_fewer_tokens() -> None:
    with make_web(page_form="short", max_tokens=100) as env:
        observation, _ = env.reset(seed=3)
        assert observation.text.split("\n")[3:5] == ["Page:", "List"] and "[4]Item 3" in observation.text


def test_no_text_of_a_page_looks_like_an_element_in_the_short_form() -> None:
    assert shorten_page("<a id=1>[2] Buy</a> [3]") == "[1](2) Buy (3)"
    assert shorten_page('<input id=1 value="a > b [2]">') == '[1 value="a > b (2)"]'


def test_roles_and_false_states_are_left_out_of_the_short_form() -> None:
    tab = '<li id=2 role="tab" aria-expanded="false" aria-selected="true" title="x">Tab</li>'
    assert shorten_page(tab) == '[2 aria-selected="true" title="x"]Tab'


def test_the_address_can_be_left_out() -> None:
    with make_web(max_tokens=100, show_url=False) as env:
        observation, _ = env.reset(seed=3)
        assert observation.text.split("\n")[1].startswith("Lines: 1 to ") and "http:" not in observation.text


def test_an_observation_says_task_address_and_page() -> None:
    with make_web(max_tokens=100) as env:
        observation, _ = env.reset(seed=3)
        lines = observation.text.split("\n")
        assert lines[0] == "Task: Open item 3 and tell its number."
        assert lines[1] == "URL: http://a.test/list"
        assert lines[2].startswith("Lines: 1 to ") and lines[3:5] == ["Page:", "<h1>List"]


def test_what_is_no_action_costs_a_turn_and_is_explained() -> None:
    with make_web(max_turns=2) as env:
        env.reset(seed=3)
        observation, reward, is_over, _, info = env.step(["click it"])
        assert "Notice: not an action: no action in the reply" in observation.text
        assert (reward, is_over) == (0.0, False) and "not an action" in str(info["result"])
        _, reward, is_over, truncated, info = env.step(['do(action="Click", element="999")'])
        assert (reward, is_over, truncated, info["success"]) == (0.0, True, False, False)


def test_the_notice_of_the_turn_before_is_gone_at_the_exit() -> None:
    with make_web() as env:
        env.reset(seed=2)
        assert "Notice: not an action" in env.step(["I click on it."])[0].text
        last, _, terminated, _, info = env.step(['exit(message="?")'])
        assert terminated and "Notice" not in last.text and "result" not in info


def test_comments_stay_in_the_history() -> None:
    with make_web(show_history=True) as env:
        env.reset(seed=3)
        observation, *_ = env.step(
            ['# Note: it costs 3\n# Element: the link\ndo(action="Click", element="4")']
        )
        assert '1. # Element: the link # Note: it costs 3 do(action="Click", element="4")' in observation.text


def test_tasks_keep_the_split_of_their_source() -> None:
    splits = {WebEnv.make_task(WebOptions(), seed).split(0.2) for seed in range(0, 20, 2)}
    assert splits == {Split.HELD_OUT}
    assert WebEnv.make_task(WebOptions(), 1).split(0.2) == Split.TRAIN


def test_a_task_of_another_source_is_refused() -> None:
    with make_web() as env, pytest.raises(InputError, match="it is one of sites"):
        env.reset(options={"task": Task("web", {"source": "os"})})


@pytest.mark.parametrize("options", [{"source": "miniwob"}, {"screenshot": "marks"}, {"viewport": "screen"}])
def test_the_light_driver_refuses_what_it_cannot_do(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="driver=chromium"):
        WebOptions(**options)


def test_a_start_page_that_does_not_answer_is_a_fault_of_the_system() -> None:
    content = {"source": "sites", "number": 1, "url": "http://a.test/round"}
    batch = EnvBatch("web", {}, 2)
    good = WebEnv.make_task(WebOptions(), 1)
    turns = batch.reset([Task("web", content), good])
    assert isinstance(turns[0].error, EnvError) and turns[1].error is None
    batch.close()


@needs_chromium
@pytest.mark.slow
def test_the_oracle_solves_in_chromium() -> None:
    with make_env("web", {"driver": "chromium"}) as env:
        env.reset(seed=7)
        env.step(env.oracle())
        assert env.render().shape == (720, 1280, 3)
        _, reward, is_over, _, _ = env.step(env.oracle())
        assert (reward, is_over) == (1.0, True)


def test_only_the_web_has_sites_to_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "serve", "frozenlake"]) != 0
    assert "only web has sites to open" in capsys.readouterr().err
