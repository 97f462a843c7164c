"""The web for people: pages and screenshots in play and report, outside models on all sources of tasks."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.envs.web.conftest import needs_chromium
from tests.rollout.chat_server import ChatServer, chatting

from stepwell.cli.main import main
from stepwell.config.loading import load_config
from stepwell.core import Split
from stepwell.envs import list_distinct_tasks, make_env
from stepwell.envs.web.sites import SiteHost
from stepwell.monitors.replays import load_replays

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with chatting() as running:
        yield running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ask(server: ChatServer, num_tasks: int, *settings: str) -> dict[str, Any]:
    outside = ["--endpoint", server.url, "--model", "reader", "--num-tasks", str(num_tasks)]
    assert main(["eval", *outside, "--output", "out", "recipe.name=rloo", *settings]) == 0
    return dict(json.loads(Path("out/evaluation.json").read_text())["values"])


def read_shop(body: dict[str, Any]) -> dict[str, str]:
    """A model that finds a product by the search box and tells its price."""
    page = body["messages"][-1]["content"]
    title = re.search(r"price of (.+) \?|much does the product (.+) cost", page)
    if title is None:  # the question whether it is there at all
        return {"content": "ready"}
    name = title[1] or title[2]
    if price := re.search(r"Price: (\S+)", page):
        action = f'exit(message="{price[1]}")'
    elif link := re.search(rf"(?:\[|<a id=)(\d+)[]>]{re.escape(name)}", page):
        action = f'do(action="Click", element="{link[1]}")'
    else:
        field = re.search(r'(?:\[|<input id=)(\d+) name="q"', page)
        assert field is not None
        action = f'do(action="Search", argument="{name}", element="{field[1]}")'
    return {"content": f"<answer>{action}</answer>"}


@pytest.mark.parametrize("preset", ["web", "web-tiny", "webrl"])
def test_presets_hold_out_parameters_and_scripts_solve_their_tasks(preset: str) -> None:
    options = load_config(preset, []).env.options
    with make_env("web", options) as env:
        for task in islice(list_distinct_tasks("web", options, Split.HELD_OUT, 0), 4):
            assert task.content["split"] == "parameters"
            env.reset(options={"task": task})
            is_over, success = False, False
            while not is_over:
                _, _, is_over, _, info = env.step(env.oracle())
                success = bool(info["success"])
            assert success


def test_an_outside_model_is_measured_on_the_sites(server: ChatServer) -> None:
    server.say = read_shop
    values = ask(server, 3, "web-tiny", 'env.options.templates=["shop.price"]')
    assert values["success"] == 1.0 and values["turns"] == 3.0
    first = load_replays(Path("out/replays.json"))[0].frames[0]
    assert "Task: price of" in first.observation and first.image_png is not None


def test_an_outside_model_is_measured_on_tasks_of_webarena_with_addresses_by_option(
    server: ChatServer, tmp_path: Path
) -> None:
    host = SiteHost(seed=0, size="tiny")
    url = f"http://shop.localhost:{host.serve()}"
    episode = host.open_episode()
    ((number, title, cents),) = episode.query("SELECT id, title, price FROM products LIMIT 1")
    episode.close()
    judged = {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"exact_match": f"${cents / 100:g}"},
        "reference_url": f"__SHOPPING__/product/{number}",
        "url_note": "GOLD in PRED",
        "program_html": [
            {
                "url": "last",
                "locator": "document.querySelector('h1').outerText",
                "required_contents": {"exact_match": title},
            }
        ],
    }
    task = {"sites": ["shopping"], "start_url": "__SHOPPING__", "task_id": 0, "eval": judged}
    wrong = {**judged, "reference_answers": {"exact_match": "$99"}}
    intent = f"price of {title} ?"
    entries = [{**task, "intent": intent}, {**task, "task_id": 1, "intent": intent, "eval": wrong}]
    (tmp_path / "tasks.json").write_text(json.dumps(entries))
    server.say = read_shop
    try:
        values = ask(
            server,
            2,
            "web",
            "env.options.source=webarena",
            f"env.options.webarena.sites.shopping={url}",
            f"env.options.webarena.tasks={tmp_path / 'tasks.json'}",
        )
    finally:
        host.stop()
    assert values["success"] == 0.5


@needs_chromium
@pytest.mark.slow
def test_an_outside_model_is_measured_on_miniwob(server: ChatServer) -> None:
    def click_button(body: dict[str, Any]) -> dict[str, str]:
        page = body["messages"][-1]["content"]
        found = re.search(r"<button id=(\d+)>", page)
        is_open = found is not None and "The episode is over." not in page
        action = f'do(action="Click", element="{found[1]}")' if found and is_open else 'exit(message="done")'
        return {"content": f"<answer>{action}</answer>"}

    server.say = click_button
    pages = 'env.options={source="miniwob", driver="chromium", miniwob={pages=["click-test"]}}'
    assert ask(server, 2, "env.name=web", "agent.context=observation", pages)["success"] == 1.0


def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str, *argv: str) -> str:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["play", *argv]) == 0
    return capsys.readouterr().out


def test_a_page_is_played_as_an_agent_sees_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ("web-tiny", "env.options.show_url=true")
    out = play(monkeypatch, capsys, '/h\ndo(action="Click", element="2")\n/q\n', *shown)
    assert "[2]Cart" in out and "do(action=" in out and "URL: http://shop.localhost/cart" in out
    assert "screenshot" not in out


@needs_chromium
@pytest.mark.slow
def test_in_a_browser_play_and_report_have_screenshots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: ChatServer
) -> None:
    settings = ["web-tiny", "env.options.driver=chromium", 'env.options.templates=["shop.price"]']
    out = play(monkeypatch, capsys, "/q\n", *settings)
    (path,) = re.findall(r"^screenshot (.+)$", out, flags=re.MULTILINE)
    assert Path(path).read_bytes().startswith(PNG) and "Task: price of" in out
    server.say = read_shop
    assert ask(server, 1, *settings)["success"] == 1.0
    (replay,) = load_replays(Path("out/replays.json"))
    images = {frame.image_png for frame in replay.frames}
    assert len(images) == 3 and all(
        png is not None and png[16:24].hex() == "00000500000002d0" for png in images
    )
    page = Path("out/report.html").read_text()
    assert len(re.findall("data:(?:video/webm|image/gif);base64,", page)) == 1  # the episode in motion
