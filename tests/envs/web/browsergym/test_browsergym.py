"""The adapter of BrowserGym on MiniWoB++, an open task and WebArena; and what it says where it is missing.

WebArena's own sites cannot be had here: our map stands in for its map, at an address of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benchmarks.webarena_path import serve_five

from stepwell.core import ConfigError, InputError, Task
from stepwell.core.errors import StepwellError
from stepwell.envs.web.browsergym.env import BrowserGymEnv, BrowserGymOptions
from stepwell.envs.web.miniwob.server import serve_pages
from stepwell.envs.web.sites.host import SiteHost
from stepwell.envs.web.webarena.loader import load_entries

HAS_PACKAGE = find_spec("browsergym") is not None
needs_package = pytest.mark.skipif(not HAS_PACKAGE, reason="scripts/test_extra_browsergym.sh")
TASKS = ("browsergym/miniwob.click-test", "browsergym/miniwob.click-button")


@pytest.mark.skipif(HAS_PACKAGE, reason="BrowserGym is here")
def test_a_missing_package_is_told_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"test_extra_browsergym\.sh"):
        BrowserGymEnv().reset(seed=0)


def test_a_task_is_one_of_the_list_with_a_seed() -> None:
    options = BrowserGymOptions(tasks=TASKS, max_seed=10)
    drawn = {BrowserGymEnv.make_task(options, seed).id for seed in range(200)}
    assert len(drawn) == 20
    env = BrowserGymEnv(options)
    with pytest.raises(InputError, match="'task' of the option tasks"):
        env.reset(options={"task": Task("browsergym", {"task": "browsergym/other", "seed": 1})})


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIWOB_URL", f"http://127.0.0.1:{serve_pages()}/miniwob/")
        with BrowserGymEnv(BrowserGymOptions(tasks=TASKS, delay_s=0.1)) as env:
            yield env


def find_button(text: str, name: str) -> str:
    found = re.search(rf"\[(\w+)\] button '{re.escape(name)}'", text)
    assert found, text
    return found[1]


@needs_package
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_click_tasks_are_solved(env: Any, seed: int) -> None:
    observation, _ = env.reset(options={"task": Task("browsergym", {"task": TASKS[0], "seed": seed})})
    assert "Task: Click the button." in observation.text
    _, reward, terminated, truncated, info = env.step(
        [f'click("{find_button(observation.text, "Click Me!")}")']
    )
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@needs_package
def test_a_wrong_click_fails_and_a_seed_repeats(env: Any) -> None:
    for seed in range(4, 12):
        task = Task("browsergym", {"task": TASKS[1], "seed": seed})
        first = env.reset(options={"task": task})[0].text
        wanted = re.search(r'Click on the "([^"]+)" button', first)
        assert wanted
        names = set(re.findall(r"button '([^']+)'", first)) - {wanted[1]}
        if names:
            break
    _, reward, terminated, _, info = env.step([f'click("{find_button(first, sorted(names)[0])}")'])
    assert terminated and reward <= 0 and not info["success"]
    again = env.reset(options={"task": task})[0].text
    assert re.findall(r"button '([^']+)'", again) == re.findall(r"button '([^']+)'", first)


@needs_package
def test_a_call_that_is_refused_costs_the_turn(env: Any) -> None:
    env.reset(options={"task": Task("browsergym", {"task": TASKS[0], "seed": 1})})
    for call in ('click("999")', "import os", '__import__("os").abort()'):
        observation, reward, terminated, _, info = env.step([call])
        assert (reward, terminated) == (0.0, False)
        assert "Notice: " in observation.text and info["result"]


@needs_package
def test_a_task_that_no_module_registers_is_refused() -> None:
    name = "browsergym/miniwob.click-moon"
    with (
        BrowserGymEnv(BrowserGymOptions(tasks=(name,))) as env,
        pytest.raises(StepwellError, match="click-moon"),
    ):
        env.reset(seed=0)


@needs_package
def test_an_open_task_starts_where_it_is_told_and_has_no_reward() -> None:
    host = SiteHost(0, "tiny")
    address = f"http://shop.localhost:{host.serve()}/"
    options = BrowserGymOptions(
        tasks=("browsergym/openended",),
        modules=("browsergym.core",),
        task_kwargs={"start_url": address, "goal": "Open the cart."},
        max_turns=2,
        delay_s=0.1,
    )
    with BrowserGymEnv(options) as env:
        observation, _ = env.reset(seed=0)
        assert f"Task: Open the cart.\nAddress: {address}" in observation.text
        link = re.search(r"\[(\w+)\] link 'Cart'", observation.text)
        assert link, observation.text
        observation, reward, terminated, truncated, _ = env.step([f'click("{link[1]}")'])
        assert f"Address: {address}cart" in observation.text
        assert (reward, terminated, truncated) == (0.0, False, False)
        *_, info = env.step(['send_msg_to_user("It is open.")'])
        assert not info["success"]
    host.stop()


@needs_package
def test_tasks_of_webarena_are_started_and_judged_by_the_packages_own_evaluators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [entry for entry in load_entries() if entry["task_id"] in (7, 9)]
    assert [entry["sites"] for entry in entries] == [["map"]] * 2
    data = distribution("llama-index-core").locate_file("llama_index/core/_static/nltk_cache")
    monkeypatch.setenv("NLTK_DATA", str(Path(str(data))))  # NLTK's own, in a package that carries it
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # the package wants one and asks nothing for these tasks
    with serve_five() as (webarena, apps):
        for name, url in {**webarena["sites"], "homepage": webarena["sites"]["map"]}.items():
            monkeypatch.setenv(f"WA_{name.upper()}", url)
        tasks = tuple(f"browsergym/webarena.{entry['task_id']}" for entry in entries)
        options = BrowserGymOptions(tasks=tasks, modules=("browsergym.webarena",), delay_s=0.1)
        with BrowserGymEnv(options) as env:
            for name, entry in zip(tasks, entries, strict=True):
                texts = next(iter(entry["eval"]["reference_answers"].values()))
                right = texts if isinstance(texts, str) else ", ".join(texts)
                for answer, wanted in ((right, 1.0), ("nothing of the kind", 0.0)):
                    task = Task("browsergym", {"task": name, "seed": 1})
                    text = env.reset(options={"task": task})[0].text
                    assert f"Task: {entry['intent']}" in text and webarena["sites"]["map"] in text
                    _, reward, terminated, _, info = env.step([f"send_msg_to_user({answer!r})"])
                    assert (reward, terminated, info["success"]) == (wanted, True, wanted == 1.0)
        assert apps["map"].hits["pages"] >= 8
