"""Steps a second on the web: Chromium with 1 to 8 contexts beside Chromium alone, and the light driver.

A small site of one page with 40 links, served on this machine. A step is a click on a link that opens the
same page again; the environment's step also waits until the page is still, reads it and simplifies it. Bare:
the same clicks by Playwright alone, with nothing but its own wait for the load. `ratio` is ours over bare
with as many contexts, in the same run. Simplification is timed on generated pages up to 10 MB.

    python benchmarks/web_speed.py            # results/web_speed.json
    python benchmarks/web_speed.py --small    # a quick look; writes nothing
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn

from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.browser import FLAGS, find_chromium
from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.observation import make_view, write_observation
from stepwell.envs.web.simplify import simplify_page
from stepwell.envs.web.snapshot import prepare_controls, read_html

RESULT = Path(__file__).parent / "results" / "web_speed.json"
LINKS = "".join(f"<li><a href='/?n={i}'>Link {i}</a> and some words about it</li>" for i in range(40))
PAGE = f"<!doctype html><title>Bench</title><h1>Links</h1><ul>{LINKS}</ul>"
BLOCK = f"<div class=x><p>{'some words ' * 40}<b>and</b> <a href=/>a link</a></p></div>"


async def serve_page(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request with the page."""
    headers = [(b"content-type", b"text/html"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE.encode()})


def start_server() -> int:
    """The page by HTTP; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(serve_page, log_level="error", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return int(listener.getsockname()[1])


def play_driver(driver: Any, num_steps: int) -> None:
    """Click one link after another."""
    for number in range(num_steps):
        driver.act(WebAction("click", str(number % 40 + 1)))


def time_chromium(port: int, num_contexts: int, num_steps: int) -> float:
    """Steps a second of our driver."""
    drivers = [ChromiumDriver(serve=lambda: port) for _ in range(num_contexts)]
    with ThreadPoolExecutor(num_contexts) as pool:
        start = {"headers": {}, "allowed_hosts": ["a.test"]}
        list(pool.map(lambda driver: driver.open("http://a.test/", **start), drivers))
        began = time.perf_counter()
        list(pool.map(lambda driver: play_driver(driver, num_steps), drivers))
        seconds = time.perf_counter() - began
        list(pool.map(lambda driver: driver.close(), drivers))
    return num_contexts * num_steps / seconds


async def time_bare(port: int, num_contexts: int, num_steps: int) -> float:
    """Steps a second of Playwright alone."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        pages = [await (await browser.new_context()).new_page() for _ in range(num_contexts)]
        for page in pages:
            await page.goto(f"http://127.0.0.1:{port}/")

        async def play(page: Any) -> None:
            for number in range(num_steps):
                links = await page.query_selector_all("a")
                await links[number % 40].click()
                await page.wait_for_load_state("load")

        began = time.perf_counter()
        await asyncio.gather(*map(play, pages))
        seconds = time.perf_counter() - began
        await browser.close()
    return num_contexts * num_steps / seconds


def time_light(num_steps: int) -> float:
    """Steps a second of the light driver in one process."""
    driver = LightDriver(app=serve_page)
    driver.open("http://a.test/", headers={}, allowed_hosts=["a.test"])
    began = time.perf_counter()
    play_driver(driver, num_steps)
    return num_steps / (time.perf_counter() - began)


def time_simplification(size: int, repeats: int) -> dict[str, float]:
    """Seconds of reading, simplifying and cutting a page of `size` bytes."""
    html = PAGE + BLOCK * (size // len(BLOCK))
    times: dict[str, float] = {"bytes": len(html)}
    for _ in range(repeats):
        began = time.perf_counter()
        snapshot = read_html("http://a.test/", html)
        prepare_controls(snapshot.body)
        parsed = time.perf_counter()
        page = simplify_page(snapshot)
        simple = time.perf_counter()
        write_observation(make_view(page, "http://a.test/", "", ("",), 0, offset=0, notice=""), 4000)
        ended = time.perf_counter()
        for name, value in (
            ("read_s", parsed - began),
            ("simplify_s", simple - parsed),
            ("cut_s", ended - simple),
        ):
            times[name] = min(times.get(name, value), value)
    times["pages_per_s"] = 1 / (times["read_s"] + times["simplify_s"] + times["cut_s"])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a quick look; writes nothing")
    small = parser.parse_args().small
    port, steps = start_server(), 5 if small else 40
    rows = []
    for contexts in (1, 2) if small else (1, 2, 4, 8):
        bare = asyncio.run(time_bare(port, contexts, steps))
        ours = time_chromium(port, contexts, steps)
        rows.append({"contexts": contexts, "bare": bare, "ours": ours, "ratio": ours / bare})
        print(f"{contexts} contexts: bare {bare:.1f} steps/s, ours {ours:.1f}, ratio {ours / bare:.2f}")
    light = time_light(50 if small else 2000)
    print(f"light driver: {light:.0f} steps/s")
    sizes = (10_000, 1_000_000) if small else (10_000, 100_000, 1_000_000, 10_000_000)
    pages = [time_simplification(size, 1 if small else 3) for size in sizes]
    for page in pages:
        print(f"{page['bytes']:>10,.0f} bytes: {page['pages_per_s']:.1f} pages/s, " + json.dumps(page))
    if not small:
        machine = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        }
        result = {**machine, "chromium": rows, "light_steps_per_s": light, "simplification": pages}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
