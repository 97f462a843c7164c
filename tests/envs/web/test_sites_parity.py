"""Our own sites show the same pages and react in the same way in Chromium and in the light driver."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.web_pages import start_content
from benchmarks.web_parity import compare_pages, walk_site
from tests.envs.web.conftest import needs_chromium

from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.options import WebOptions
from stepwell.envs.web.sites.source import SitesSource

SITES = ("shop", "admin", "forum", "code", "map")
HEIGHT_OF_BAR = (
    "document.querySelector('header').offsetHeight / document.querySelector('button').offsetHeight"
)


def play_both(light: WebEnv, chromium: WebEnv, site: str, seed: int, plays_oracle: bool) -> float:
    """One episode side by side; every observation, reward and end is the same. Its reward."""
    task = WebEnv.make_task(light.options.model_copy(update={"sites": (site,)}), seed)
    start: Any = {"options": {"task": task}}
    assert light.reset(**start)[0] == chromium.reset(**start)[0]
    rng, is_over, reward = random.Random(seed), False, 0.0
    while not is_over:
        actions = light.oracle() if plays_oracle else [light.random_action(rng)]
        mine, reward, is_over, _, info = light.step(actions)
        other, other_reward, other_end, _, other_info = chromium.step(actions)
        assert mine.text == other.text, actions
        assert (reward, is_over, info) == (other_reward, other_end, other_info), actions
    return reward


@pytest.fixture(scope="module")
def envs() -> Iterator[tuple[WebEnv, WebEnv]]:
    """All sites under both drivers; one browser for all of them."""
    options = WebOptions(sites=SITES, max_tokens=20_000)
    with WebEnv(options) as light, WebEnv(options.model_copy(update={"driver": "chromium"})) as chromium:
        yield light, chromium


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_a_site_is_the_same_under_both_drivers(site: str, envs: tuple[WebEnv, WebEnv]) -> None:
    """Two tasks to their end by script, and one at random."""
    assert [play_both(*envs, site, seed, plays_oracle=True) for seed in range(2)] == [1.0] * 2
    play_both(*envs, site, 4, plays_oracle=False)


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_pages_and_actions_of_a_full_site_are_the_same_under_both_drivers(site: str) -> None:
    """A sample; `benchmarks/web_parity.py` compares all."""
    pages, walk = compare_pages(site, "full", 8), walk_site(site, "full", 40)
    assert pages["differences"] + walk["differences"] == []
    assert pages["kinds"] >= 5 and walk["kinds"] >= 3 and len(walk["actions"]) >= 7


@needs_chromium
@pytest.mark.slow
def test_bar_of_every_site_is_one_line_for_a_person_who_is_logged_in() -> None:
    source = SitesSource()
    heights = {}
    for site in SITES:
        start = source.start(start_content(site, "full"))
        driver = ChromiumDriver(start.serve, 30.0)
        driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
        heights[site] = driver.run_script(HEIGHT_OF_BAR)
        driver.close()
    source.close()
    assert max(heights.values()) < 2, heights
