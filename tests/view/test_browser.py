"""The view in a real Chromium, over a recorded run of each kind: every page, live update, tags, controls."""

from __future__ import annotations

import io
import os
import re
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.view.hostile import NAME, SHOTS, TOKEN, WRITTEN, write_hostile_run
from tests.view.talking_lake import SAID

from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.phases import read_phases
from stepwell.monitors.summary import read_summary
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train
from stepwell.services.http_server import serve_in_thread
from stepwell.view.app import ViewApp

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KINDS = ("text", "vision", "robot", "web", "streaming")
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def context(browser: Any, address: str) -> Iterator[Any]:
    """A browser that has the token. One for all pages: a new one is a process of a second or two."""
    with closing(browser.new_context(viewport={"width": 1200, "height": 800})) as context:
        assert context.request.get(f"{address}/?token={TOKEN}").ok
        yield context


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """A page; a test fails on any error of a script, and leaves no choices for the next one."""
    with closing(context.new_page()) as opened:
        errors: list[str] = []
        opened.set_default_timeout(WAIT_MS)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        yield opened
        opened.evaluate("() => localStorage.clear()")
        assert errors == []


def take_shot(page: Any, name: str) -> None:
    if SHOTS:
        page.wait_for_timeout(300)
        shot = Image.open(io.BytesIO(page.screenshot()))
        shot.convert("RGB").quantize(256).save(f"{SHOTS}/view-{name}.png", optimize=True)


def find_episode(runs: Path, name: str) -> str:
    """A trajectory of a run that an update learnt from: long, and a success if there is one."""
    with open_pool(runs / name / "pool") as pool:
        rows = list(pool.find(Filter(channel="train"), newest_first=True, limit=50))
        return max(rows, key=lambda row: (row.is_success, row.num_steps)).id


def choose_run(runs: Path) -> str:
    """The run of the pictures: a longer one if there is one."""
    return "courier" if (runs / "courier").exists() else "text"


def test_the_overview_shows_every_run_and_changes_its_axis(page: Any, address: str, runs: Path) -> None:
    page.goto(f"{address}/?token={TOKEN}")
    assert page.locator("#runs tbody tr").count() == len(list(runs.iterdir()))
    assert page.locator("#curves svg").count() > 5
    page.get_by_role("link", name="environment steps").click()
    page.wait_for_url("**x=env_steps**")
    page.locator("#curves svg[data-x]").first.hover()
    assert "at " in page.locator(".tip").text_content()


def test_twenty_runs_of_four_recipes_are_four_bands(browser: Any, tmp_path: Path) -> None:
    load = runpy.run_path(str(ROOT / "benchmarks" / "view_load.py"))
    for seed in range(20):
        load["write_metrics"](tmp_path / f"run-{seed:02d}", seed, 1000 if SHOTS else 60)
    view = ViewApp([str(tmp_path)], token=TOKEN)
    url, stop = serve_in_thread(view.app)
    try:
        with closing(browser.new_context(viewport={"width": 1200, "height": 800})) as context:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(f"{url}/?x=env_steps&token={TOKEN}")
            assert page.locator("#runs tbody tr").count() == 20
            held_out = page.locator("#curves figure.wide svg").first
            assert held_out.locator("text", has_text="(5 seeds)").count() == 4
            take_shot(page, "overview")
            page.get_by_role("link", name="every seed").click()
            page.wait_for_url("**seeds=lines**")
            assert page.locator("#curves figure.wide polyline").count() >= 20
    finally:
        stop()
        view.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_page_of_every_kind_of_run_opens(page: Any, address: str, runs: Path, kind: str) -> None:
    for part in ("", "/trajectories", "/pipeline", "/curriculum", "/tree"):
        assert page.goto(f"{address}/run/{kind}{part}").status == 200
        assert page.locator("h1").text_content()
    page.goto(f"{address}/run/{kind}/trajectory?id={find_episode(runs, kind)}")
    assert page.locator("article.step").count() >= 1
    assert page.locator("#credit tbody tr").count() == page.locator("article.step").count()


def test_tokens_are_coloured_by_a_chosen_figure(page: Any, address: str, runs: Path) -> None:
    run = choose_run(runs)
    page.goto(f"{address}/run/{run}/trajectory?id={find_episode(runs, run)}")
    assert page.locator(".steps").get_attribute("data-colour") == "advantage"
    take_shot(page, "trajectory")
    page.locator("article.step").last.evaluate("node => node.scrollIntoView({block: 'end'})")
    take_shot(page, "steps")
    page.keyboard.press("l")
    assert page.locator(".steps").get_attribute("data-colour") == "logprob"
    shaded = page.locator('.tokens [data-l^="n"]').first
    assert shaded.evaluate("node => getComputedStyle(node).backgroundColor") != "rgba(0, 0, 0, 0)"
    assert "logprob" in shaded.get_attribute("title")


def test_an_agent_that_sees_has_its_images(page: Any, address: str, runs: Path) -> None:
    page.goto(f"{address}/run/vision/trajectory?id={find_episode(runs, 'vision')}")
    image = page.locator(".images img").first
    image.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('.images img').naturalWidth > 0")
    take_shot(page, "images")


def test_a_robots_episode_is_a_video_that_plays_and_seeks(page: Any, address: str, runs: Path) -> None:
    pytest.importorskip("av")
    page.goto(f"{address}/run/robot/trajectory?id={find_episode(runs, 'robot')}")
    film = page.locator("#film video")
    film.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('#film video').currentTime > 0.2")
    film.evaluate("video => { video.pause(); video.currentTime = video.duration / 2; }")
    page.wait_for_function(
        "() => { const v = document.querySelector('#film video'); return !v.seeking && v.currentTime > 1; }"
    )
    assert film.evaluate("video => [video.videoWidth, video.error]") == [192, None]  # 24 pixels, enlarged
    take_shot(page, "robot")
    page.goto(f"{address}/run/robot")  # episodes before and after training, from the report
    page.locator("#replays video").first.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('#replays video').currentTime > 0.2")


def test_filters_and_keys_lead_to_a_trajectory(page: Any, address: str, runs: Path) -> None:
    page.goto(f"{address}/run/{choose_run(runs)}")
    page.keyboard.press("t")
    page.wait_for_url("**/trajectories")
    before = page.locator("#rows tbody tr").count()
    page.locator("select[name=channel]").select_option("eval")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**channel=eval**")
    assert 0 <= page.locator("#rows tbody tr").count() < before
    page.get_by_role("link", name="clear").click()
    page.wait_for_load_state()
    page.locator("input[name=text]").fill("no agent has written this")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**text=no**")
    assert re.search(r"0 found in \d+ searched", page.locator("main").inner_text())
    page.get_by_role("link", name="clear").click()
    page.wait_for_load_state()
    take_shot(page, "trajectories")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trajectory?id=**")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => location.href !== {page.url!r}")


def test_tags_are_added_and_removed(page: Any, address: str, runs: Path) -> None:
    id = find_episode(runs, "text")
    page.goto(f"{address}/run/text/trajectory?id={id}")
    page.get_by_label("new tag").fill("good example")
    page.get_by_role("button", name="Tag", exact=True).click()
    page.get_by_text("good example").wait_for()
    with open_pool(runs / "text" / "pool") as pool:
        assert "good example" in pool.get(id).entry.tags
    page.get_by_label("remove tag good example").click()
    page.get_by_text("good example").wait_for(state="detached")


def test_siblings_tree_and_pipeline_are_drawn(page: Any, address: str, runs: Path) -> None:
    run = choose_run(runs)
    page.goto(f"{address}/run/{run}/trajectory?id={find_episode(runs, run)}")
    page.get_by_role("link", name="side by side").click()
    page.wait_for_url("**/group?**")
    assert page.locator(".beside thead th").count() == 3  # the head column and two siblings
    take_shot(page, "siblings")
    page.goto(f"{address}/run/{run}/tree")
    assert page.locator("#tree svg rect").count() > 3
    take_shot(page, "tree")
    page.goto(f"{address}/run/streaming/pipeline")
    assert page.locator("#timeline svg rect").count() > 3
    take_shot(page, "pipeline")


def test_a_curriculum_shows_lineage_what_was_dropped_and_replay(browser: Any, tmp_path: Path) -> None:
    from tests.runs.small import small_config
    from tests.runs.test_webrl import WEBRL

    short = ("train.num_updates=4", "curriculum.num_phases=2", "curriculum.max_value=0.5")
    folder = train(small_config(*WEBRL, *short, "checkpoint.every=0", folder=tmp_path, name="phases"))
    first, second = read_phases(folder)
    view = ViewApp([str(tmp_path)], token=TOKEN)
    url, stop = serve_in_thread(view.app)
    try:
        with closing(browser.new_context(viewport={"width": 1200, "height": 1000})) as context:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(f"{url}/?token={TOKEN}")
            page.goto(f"{url}/run/phases")
            page.keyboard.press("c")
            page.wait_for_url("**/curriculum")
            read_row = page.locator("#phases tr", has=page.get_by_role("cell", name="updates", exact=True))
            assert read_row.locator("td").all_text_contents() == ["updates", "1 to 2", "3 to 4"]
            assert_dropped_tasks_are_listed(page, second)
            children = page.locator("#phases .tree li li")  # below the task that it was made from
            assert children.count() >= 1 and "phase 2" in children.first.text_content()
            replayed = [each["perplexities"]["counts"] for each in (first, second)]
            shown = page.locator("#phases tr", has_text=re.compile(r" to \d\.\d\d|above"))
            rows = [shown.nth(i).locator("td").all_text_contents() for i in range(shown.count())]
            assert [[int(row[1]), int(row[2])] for row in rows] == np.transpose(replayed).tolist()
            assert sum(replayed[1]) > 0
            take_shot(page, "curriculum")
    finally:
        stop()
        view.close()


def assert_dropped_tasks_are_listed(page: Any, phase: dict[str, Any]) -> None:
    """Each with its reason, as many as were counted."""
    dropped = page.locator("#phases details.dropped").last
    dropped.locator("summary").click()
    listed = dropped.locator("li")
    assert listed.count() == sum(phase["dropped"].values()) == len(phase["dropped_tasks"]) > 0
    for i, task in enumerate(phase["dropped_tasks"][:5]):
        assert task["reason"] in listed.nth(i).text_content()
    assert listed.first.is_visible()


def test_dark_mode_is_chosen_and_kept(page: Any, address: str, runs: Path) -> None:
    run = choose_run(runs)
    page.goto(f"{address}/run/{run}/trajectory?id={find_episode(runs, run)}")

    def read_paper() -> str:
        return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    light = read_paper()
    page.keyboard.press("d")
    assert read_paper() != light
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark" and read_paper() != light
    take_shot(page, "dark")


def test_nothing_that_an_agent_wrote_runs(browser: Any, tmp_path: Path) -> None:
    from urllib.parse import quote

    write_hostile_run(tmp_path)
    view = ViewApp([str(tmp_path)], token=TOKEN)
    url, stop = serve_in_thread(view.app)
    try:
        with closing(browser.new_context()) as context:
            page, asked = context.new_page(), []
            page.set_default_timeout(WAIT_MS)
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{url}/?token={TOKEN}")
            for part in WRITTEN:
                page.goto(f"{url}/run/{quote(NAME, safe='')}{part}")
                assert page.evaluate("() => window.hit") is None
            assert all(address.startswith(url) for address in asked)
            assert not any(address.removeprefix(url) == "/x" for address in asked)
    finally:
        stop()
        view.close()


def count_evaluations(run: Path) -> int:
    return sum(entry.kind == "eval" for entry in read_entries(run / "metrics.jsonl"))


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_MS / 1000
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def test_a_run_is_followed_and_controlled_while_it_trains(browser: Any, tmp_path: Path) -> None:
    from tests.view.recorded import build_config

    settings = ("train.num_updates=400", "eval.every=0", "eval.num_tasks=2")
    config = build_config("text", tmp_path, *settings, name="live")
    thread = threading.Thread(target=train, args=(config,))
    thread.start()
    while not (tmp_path / "live" / "control.sock").exists():
        thread.join(0.05)
    view = ViewApp([str(tmp_path)], token=TOKEN)
    url, stop = serve_in_thread(view.app)
    try:
        with closing(browser.new_context(viewport={"width": 1200, "height": 800})) as context:
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.goto(f"{url}/?token={TOKEN}")
            page.goto(f"{url}/run/live")
            page.wait_for_selector("#training svg")  # appears without a reload
            page.locator(".live.on", has_text="live").wait_for()
            page.get_by_role("button", name="Pause").click()
            page.get_by_role("button", name="Resume").wait_for()
            take_shot(page, "controls")
            page.keyboard.press("p")
            page.wait_for_url("**/pipeline")
            assert re.search(r"hold [\d,]+ MB now", page.locator("#figures").inner_text())
            page.go_back()
            page.get_by_role("button", name="Resume").wait_for()
            before = count_evaluations(tmp_path / "live")
            page.get_by_role("button", name="Checkpoint now").click()
            wait_for(lambda: any((tmp_path / "live" / "checkpoints").glob("update-*")))
            page.get_by_role("button", name="Evaluate now").click()
            wait_for(lambda: count_evaluations(tmp_path / "live") > before)
            page.get_by_role("button", name="Resume").click()
            page.get_by_role("button", name="Pause").wait_for()
            page.on("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="Stop after this update").click()
            thread.join(120)
            page.locator(".badge.interrupted").wait_for()
            page.locator(".live:not(.on)", has_text="interrupted").wait_for()
    finally:
        stop()
        view.close()
    summary = read_summary(tmp_path / "live")
    assert summary is not None and summary.interrupted_by == "control"


def test_a_killed_simulator_comes_back_and_the_page_shows_it_with_its_log(
    browser: Any, tmp_path: Path
) -> None:
    from tests.view.recorded import build_config

    told = tmp_path / "simulator"
    lake = (
        "env.name=tests.view.talking_lake:TalkingLake",
        f"env.options={{size=3, max_turns=2, file='{told}'}}",
    )
    processes = ("workers.processes=true", "workers.simulators.num_workers=1", "train.max_env_retries=0")
    settings = ("train.num_updates=4000", "eval.num_tasks=0")
    config = build_config("streaming", tmp_path, *lake, *processes, *settings, name="live")
    thread = threading.Thread(target=train, args=(config,))
    thread.start()
    control = tmp_path / "live" / "control.sock"
    wait_for(lambda: (told.exists() and control.exists()) or not thread.is_alive())
    view = ViewApp([str(tmp_path)], token=TOKEN)
    url, stop = serve_in_thread(view.app)
    try:
        with closing(browser.new_context(viewport={"width": 1200, "height": 800})) as context:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(f"{url}/?token={TOKEN}")
            page.goto(f"{url}/run/live/pipeline")
            assert page.locator("#events li").count() == 0
            killed = int(told.read_text())
            os.kill(killed, signal.SIGKILL)
            event = page.locator("#events li", has_text="restart 1 of worker")  # appears without a reload
            event.wait_for()
            assert re.search(r"simulator.* was killed by SIGKILL", event.text_content())
            assert SAID in event.text_content()
            wait_for(lambda: int(told.read_text()) != killed)
            page.goto(f"{url}/run/live")
            page.on("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="Stop after this update").click()
            thread.join(120)
    finally:
        stop()
        view.close()
    assert not thread.is_alive()
