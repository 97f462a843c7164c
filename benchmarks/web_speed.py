"""Steps a second on the web: Chromium through our driver beside Chromium driven bare, and the light driver.

* Chromium with 1, 2, 4 and 8 contexts. A step is one action on a small site of two pages, a list of links and
  a form: click a link, type, choose an option, send the form, go to an address. Ours waits until the page is
  still, reads it, simplifies it and writes the observation. Bare: the same actions by Playwright's own calls,
  each followed by its wait for the load; nothing is read. Rounds of both take turns in one run; `ratio` is
  the median of ours over bare, round by round.
* The light driver: the oracles of all templates on our own sites, everything included: site, parser,
  simplifier, observation, judge. Steps per second of processor time: first, new tasks, the same again.
* Simplification: generated pages up to 10 MB, and with `--pages FOLDER` saved pages (*.html) of any origin.

    python benchmarks/web_speed.py                     # results/web_speed.json
    python benchmarks/web_speed.py --pages FOLDER      # the same with saved pages
    python benchmarks/web_speed.py --small             # a quick look; writes nothing
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from stepwell.core import Task
from stepwell.envs.web import chromium, client, env, light, tabs
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.browser import FLAGS, find_chromium
from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.observation import make_view, write_observation
from stepwell.envs.web.options import WebOptions
from stepwell.envs.web.simplify import simplify_page
from stepwell.envs.web.sites.source import SitesSource
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import make_content
from stepwell.envs.web.snapshot import prepare_controls, read_html

RESULT = Path(__file__).parent / "results" / "web_speed.json"
LINKS = "".join(f"<li><a href='/form?n={i}'>Link {i}</a> and some words about it</li>" for i in range(40))
HOME = f"<!doctype html><title>Bench</title><h1>Links</h1><ul>{LINKS}</ul>"
OPTIONS = "".join(f"<option>{word}</option>" for word in ("red", "green", "blue"))
FORM = (
    "<!doctype html><title>Form</title><h1>Form</h1><form action=/><label>Words <input name=q></label>"
    f"<label>Colour <select name=c>{OPTIONS}</select></label><button>Send</button></form>"
    + "<p>words</p>"
    * 30
)
BLOCK = f"<div class=x><p>{'some words ' * 40}<b>and</b> <a href=/>a link</a></p></div>"
CYCLE = 5  # actions of one round over the site


async def serve_page(scope: Any, receive: Any, send: Any) -> None:
    """Two pages: a form, and a list of links to it."""
    headers = [(b"content-type", b"text/html"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": (FORM if scope["path"] == "/form" else HOME).encode()})


def start_server() -> int:
    """The pages by HTTP; their port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(serve_page, log_level="error", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return int(listener.getsockname()[1])


def list_actions(number: int) -> list[WebAction]:
    """The actions of one round, from the list of links and back to it."""
    return [
        WebAction("click", str(number % 40 + 1)),
        WebAction("type", "1", f"word {number}"),
        WebAction("select_dropdown_option", "2", ("green", "blue")[number % 2]),
        WebAction("click", "3"),
        WebAction("goto", argument="/"),
    ]


def play_driver(driver: ChromiumDriver, num_rounds: int) -> None:
    """The actions by our driver, with the observation that an agent would read."""
    for number in range(num_rounds):
        for action in list_actions(number):
            write_observation(driver.act(action), 4000)


async def play_bare(page: Any, num_rounds: int, root: str) -> None:
    """The same actions by Playwright's own calls."""
    for number in range(num_rounds):
        links = await page.query_selector_all("a")
        await links[number % 40].click()
        await page.wait_for_load_state("load")
        await page.fill("input", f"word {number}")
        await page.wait_for_load_state("load")
        await page.select_option("select", label=("green", "blue")[number % 2])
        await page.wait_for_load_state("load")
        await page.click("button")
        await page.wait_for_load_state("load")
        await page.goto(root)


@contextmanager
def open_drivers(port: int, num_contexts: int) -> Iterator[Callable[[int], float]]:
    """Our drivers; a function that plays rounds and gives steps a second."""
    drivers = [ChromiumDriver(serve=lambda: port) for _ in range(num_contexts)]
    with ThreadPoolExecutor(num_contexts) as pool:
        start = {"headers": {}, "allowed_hosts": ["a.test"]}
        list(pool.map(lambda driver: driver.open("http://a.test/", **start), drivers))

        def play(num_rounds: int) -> float:
            began = time.perf_counter()
            list(pool.map(lambda driver: play_driver(driver, num_rounds), drivers))
            return num_contexts * num_rounds * CYCLE / (time.perf_counter() - began)

        yield play
        list(pool.map(lambda driver: driver.close(), drivers))


@contextmanager
def open_bare(port: int, num_contexts: int) -> Iterator[Callable[[int], float]]:
    """Playwright alone, in one loop."""
    from playwright.async_api import async_playwright

    root = f"http://127.0.0.1:{port}/"
    with asyncio.Runner() as runner:
        playwright = runner.run(async_playwright().start())
        browser = runner.run(playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS)))

        async def open_page() -> Any:
            page = await (await browser.new_context(viewport={"width": 1280, "height": 720})).new_page()
            await page.goto(root)
            return page

        pages = [runner.run(open_page()) for _ in range(num_contexts)]

        async def play_all(num_rounds: int) -> None:
            await asyncio.gather(*(play_bare(page, num_rounds, root) for page in pages))

        def play(num_rounds: int) -> float:
            began = time.perf_counter()
            runner.run(play_all(num_rounds))
            return num_contexts * num_rounds * CYCLE / (time.perf_counter() - began)

        yield play
        runner.run(browser.close())
        runner.run(playwright.stop())


def compare_chromium(port: int, num_contexts: int, num_turns: int, num_rounds: int) -> dict[str, Any]:
    """Rounds of both in turns."""
    with open_bare(port, num_contexts) as bare, open_drivers(port, num_contexts) as ours:
        bare(1), ours(1)  # warm
        pairs, parts = [], Counter[str]()
        for turn in range(num_turns):
            first = bare(num_rounds) if turn % 2 == 0 else 0.0
            with time_calls({"simplify": (chromium, "simplify_page")}, parts):
                mine = ours(num_rounds)
            pairs.append((first or bare(num_rounds), mine))
    num_steps = num_turns * num_rounds * CYCLE * num_contexts
    row = {
        "contexts": num_contexts,
        "bare_steps_per_s": statistics.median(pair[0] for pair in pairs),
        "our_steps_per_s": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[1] / pair[0] for pair in pairs),
        "ratios": [round(pair[1] / pair[0], 3) for pair in pairs],
        "simplify_ms_per_step": 1000 * parts["simplify"] / num_steps,
    }
    print(json.dumps(row), flush=True)
    return row


@contextmanager
def time_calls(places: dict[str, tuple[Any, str]], spent: Counter[str]) -> Iterator[None]:
    """Add up the processor time of these functions, each by its module and name."""
    first = {name: getattr(*place) for name, place in places.items()}

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                spent[name] += time.thread_time() - began

        return call

    for name, (owner, attribute) in places.items():
        setattr(owner, attribute, wrap(name, first[name]))
    try:
        yield
    finally:
        for name, (owner, attribute) in places.items():
            setattr(owner, attribute, first[name])


LIGHT_PARTS = {
    "site": (client.SiteClient, "request_page"),
    "parse": (tabs, "read_html"),
    "simplify": (tabs, "simplify_page"),
    "view": (light, "make_view"),
    "observation": (env, "write_observation"),
    "judge": (SitesSource, "judge"),
    "read_action": (env, "parse_action"),
    "oracle": (WebEnv, "oracle"),
}


def make_tasks(size: str, draws: range) -> list[Task]:
    """Tasks of every template."""
    contents = [
        make_content(template, random.Random(f"{name}/{draw}"), size, 0)
        for draw in draws
        for name, template in TEMPLATES.items()
    ]
    return [Task("web", content, content["instruction"]) for content in contents]


def time_light(size: str, num_draws: int) -> dict[str, Any]:
    """The oracles of all templates in one process, the oracle's own thoughts not counted."""
    first, fresh = make_tasks(size, range(num_draws)), make_tasks(size, range(num_draws, 2 * num_draws))
    row: dict[str, Any] = {"size": size}
    with WebEnv(WebOptions(size=size)) as player:  # type: ignore[arg-type]
        for name, tasks in (("first", first), ("new_tasks", fresh), ("same_again", fresh)):
            row[name] = play_oracles(player, tasks)
        spent: Counter[str] = Counter()
        third = make_tasks(size, range(2 * num_draws, 3 * num_draws))
        with time_calls(LIGHT_PARTS, spent):
            began = time.thread_time()
            num_steps = play_oracles(player, third)["steps"]
            total = time.thread_time() - began
    row["new_tasks_us_per_step"] = {name: 1e6 * seconds / num_steps for name, seconds in spent.items()}
    row["new_tasks_us_per_step"]["all"] = 1e6 * total / num_steps
    print(json.dumps(row), flush=True)
    return row


def play_oracles(player: WebEnv, tasks: list[Task]) -> dict[str, Any]:
    """Play tasks; every one must be solved."""
    num_steps, thinking = 0, 0.0
    began = time.process_time()
    for task in tasks:
        player.reset(options={"task": task})
        is_over = False
        while not is_over:
            asked = time.process_time()
            actions = player.oracle()
            thinking += time.process_time() - asked
            _, reward, is_over, _, _ = player.step(actions)
            num_steps += 1
        assert reward == 1.0, task.content
    seconds = time.process_time() - began
    return {
        "steps": num_steps,
        "steps_per_cpu_s": num_steps / (seconds - thinking),
        "steps_per_cpu_s_with_oracle": num_steps / seconds,
    }


def time_simplification(html: str, repeats: int) -> dict[str, float]:
    """Seconds of processor time of reading, simplifying and cutting a page."""
    times: dict[str, float] = {"bytes": len(html.encode())}
    for _ in range(repeats):
        began = time.thread_time()
        snapshot = read_html("http://a.test/", html)
        prepare_controls(snapshot.body)
        parsed = time.thread_time()
        page = simplify_page(snapshot)
        simple = time.thread_time()
        write_observation(make_view(page, "http://a.test/", "", ("",), 0, offset=0, notice=""), 4000)
        ended = time.thread_time()
        for name, value in (
            ("read_s", parsed - began),
            ("simplify_s", simple - parsed),
            ("cut_s", ended - simple),
        ):
            times[name] = min(times.get(name, value), value)
    times["pages_per_s"] = 1 / (times["read_s"] + times["simplify_s"] + times["cut_s"])
    return times


def time_saved_pages(folder: Path, repeats: int) -> list[dict[str, float]]:
    """Saved pages by classes of size; pages a second is their number over the sum of their times."""
    timed = [
        time_simplification(path.read_text(errors="replace"), repeats)
        for path in sorted(folder.rglob("*.html"))
    ]
    rows = []
    for low, high in ((0, 10**5), (10**5, 10**6), (10**6, 10**7)):
        kept = [row for row in timed if low <= row["bytes"] < high]
        if kept:
            mean_bytes = statistics.mean(row["bytes"] for row in kept)
            per_s = len(kept) / sum(1 / row["pages_per_s"] for row in kept)
            largest = max(row["bytes"] for row in kept)
            rows.append(
                {"pages": len(kept), "mean_bytes": mean_bytes, "largest": largest, "pages_per_s": per_s}
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a quick look; writes nothing")
    parser.add_argument("--pages", type=Path, help="a folder of saved pages (*.html), any depth")
    parser.add_argument("--part", choices=("chromium", "light", "simplification"), help="only this part")
    parser.add_argument("--output", type=Path, default=RESULT, help="the file that gets what was measured")
    args = parser.parse_args()
    small = args.small
    result: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],  # other work on the machine makes all absolute figures too low
    }
    if args.part in (None, "chromium"):
        port, turns, rounds = start_server(), 2 if small else 6, 2 if small else 4
        contexts = (1, 2) if small else (1, 2, 4, 8)
        result["chromium"] = [compare_chromium(port, number, turns, rounds) for number in contexts]
    if args.part in (None, "light"):
        result["light"] = [time_light(size, 1 if small else 4) for size in ("tiny", "full")]
    if args.part in (None, "simplification"):
        sizes = (10_000, 1_000_000) if small else (10_000, 100_000, 1_000_000, 10_000_000)
        generated = [HOME + BLOCK * (size // len(BLOCK)) for size in sizes]
        result["simplification"] = [time_simplification(html, 1 if small else 3) for html in generated]
        for row in result["simplification"]:
            print(json.dumps(row), flush=True)
        if args.pages:
            result["saved_pages"] = time_saved_pages(args.pages, 1 if small else 3)
    if not small:  # parts that were not measured stay as they are
        kept = json.loads(args.output.read_text()) if args.output.exists() else {}
        args.output.write_text(json.dumps({**kept, **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
