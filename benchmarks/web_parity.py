"""Our sites in Chromium and in the light driver: the same pages, the same effects, and every oracle solves.

Three parts, each for the tiny and the full size, two drivers side by side on two snapshots of one world:

* oracles: the oracle of every template plays in both drivers. Every view after every action is compared, and
  both ends are judged. Chance plays in the light driver, by the environment's own random actions.
* pages: every page that links lead to from the start page, logged in, up to a number, opened by its address.
* actions: a walk that does what was done least on this kind of page: each of the fourteen actions (exit ends
  an episode and has no page after it), each kind of element. A press is one of the keys that both know.

A view is the same if all of it is: address, title, HTML, text, elements, tabs, notice and viewport.

    python benchmarks/web_parity.py                      # results/web_oracles.json, results/web_parity.json
    python benchmarks/web_parity.py --small              # a quick look; writes nothing
    python benchmarks/web_parity.py --part pages --size tiny
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from stepwell.core import Task
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import BLANK
from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.options import SITES, WebOptions
from stepwell.envs.web.page import PageElement, PageView
from stepwell.envs.web.sites.app import find_route
from stepwell.envs.web.sites.pages import SITES as PAGES
from stepwell.envs.web.sites.source import SitesSource
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import make_content

RESULTS = Path(__file__).parent / "results"
KEYS = ("Enter", "PageDown", "PageUp", "Home", "End")
EMPTY = ("scroll", "new_tab", "tab_focus", "close_tab", "goto", "go_back", "go_forward", "press")
TEXTS = ("red", "7", "ann", "a & b <c>", "2026-01-31", "")
MAX_TOLD = 20


class DriverPair:
    """One task in both drivers; `differences` are told in words."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.sources = SitesSource(), SitesSource()
        starts = [source.start(content) for source in self.sources]
        self.light, self.chromium = LightDriver(starts[0].app), ChromiumDriver(starts[1].serve, 30.0)
        self.differences: list[str] = []
        self.num_views = 0
        views = [
            driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
            for driver, start in zip((self.light, self.chromium), starts, strict=True)
        ]
        self.view = self._compare(*views, "open")

    def act(self, action: WebAction) -> PageView:
        """Do one action in both; the view of the light driver."""
        self.view = self._compare(self.light.act(action), self.chromium.act(action), str(action))
        return self.view

    def judge(self, answer: str) -> tuple[float, float]:
        """The score in both drivers."""
        light, chromium = self.sources
        return (
            light.judge(self.view, self.light, answer),
            chromium.judge(self.other, self.chromium, answer),
        )

    def close(self) -> None:
        for part in (self.light, self.chromium, *self.sources):
            part.close()

    def _compare(self, mine: PageView, other: PageView, action: str) -> PageView:
        self.num_views += 1
        self.other = other
        if mine != other:
            parts = {name: (getattr(mine, name), getattr(other, name)) for name in PageView.__slots__}
            told = {name: tell_difference(*pair) for name, pair in parts.items() if pair[0] != pair[1]}
            self.differences.append(f"{self.content['template']} {mine.url} {action}: {told}")
        return mine


def tell_difference(mine: Any, other: Any) -> str:
    """The first place where two values differ, the light driver's first."""
    if isinstance(mine, str) and isinstance(other, str):
        pairs = zip(f"{mine}\n".split("\n"), f"{other}\n".split("\n"), strict=False)
        mine, other = next((pair for pair in pairs if pair[0] != pair[1]), (mine[-80:], other[-80:]))
    elif isinstance(mine, tuple) and len(mine) == len(other):
        mine, other = next(pair for pair in zip(mine, other, strict=True) if pair[0] != pair[1])
    return f"{str(mine)[:300]!r} is {str(other)[:300]!r}"


@contextmanager
def open_pair(content: dict[str, Any]) -> Any:
    """Both drivers on a task."""
    pair = DriverPair(content)
    try:
        yield pair
    finally:
        pair.close()


def play_oracle(name: str, size: str) -> dict[str, Any]:
    """The oracle of a template in both drivers."""
    content = make_content(TEMPLATES[name], random.Random(name), size, 0)
    with open_pair(content) as pair:
        plan = SitesSource().plan(content)
        while (action := plan(pair.view)).name != "exit":
            pair.act(action)
        scores = pair.judge(action.argument)
        return {"scores": scores, "views": pair.num_views, "differences": pair.differences}


def play_by_chance(size: str, num_episodes: int) -> dict[str, float]:
    """Random actions of the environment in the light driver."""
    solved = num_steps = 0
    rng = random.Random(0)
    with WebEnv(WebOptions(size=size)) as env:  # type: ignore[arg-type]
        for number in range(num_episodes):
            template = list(TEMPLATES.values())[number % len(TEMPLATES)]
            content = make_content(template, rng, size, 0)
            env.reset(options={"task": Task("web", content, content["instruction"], seed=number)})
            is_over = False
            while not is_over:
                _, reward, is_over, _, _ = env.step([env.random_action(rng)])
                num_steps += 1
            solved += reward >= 1
    return {"episodes": num_episodes, "steps": num_steps, "solved_share": solved / num_episodes}


def start_content(site: str, size: str) -> dict[str, Any]:
    """A task that starts on a site's first page with a person logged in."""
    found = next(
        t for t in TEMPLATES.values() if t.site == site and t.is_logged_in and t.start == "/" and t.sample
    )
    return make_content(found, random.Random(0), size, 0)


def compare_pages(site: str, size: str, max_pages: int) -> dict[str, Any]:
    """Every page that links lead to, opened by its address; nothing is sent, nobody logs out."""
    with open_pair(start_content(site, size)) as pair:
        seen, waiting = {pair.view.url}, [pair.view.url]
        routes: Counter[str] = Counter()
        while waiting and pair.num_views <= max_pages:
            waiting.sort(key=lambda url: routes[name_route(url)])  # kinds of pages seen least come first
            url = waiting.pop(0)
            view = pair.act(WebAction("goto", argument=url))
            routes[name_route(url)] += 1
            for element in view.elements:
                href = element.attributes.get("href", "")
                target = f"http://{site}.localhost{href}" if href.startswith("/") else ""
                if target and target not in seen and not re.match(r"/(logout|sites/)", href):
                    seen.add(target)
                    waiting.append(target)
        return {
            "pages": pair.num_views,
            "left": len(waiting),
            "kinds": len(routes),
            "differences": pair.differences,
        }


def name_route(url: str) -> str:
    """The kind of a page: the route that answers it, and the names in its query."""
    parts = urlsplit(url)
    site = next((site for site in PAGES if parts.hostname == f"{site.name}.localhost"), None)
    if site is None:
        return url
    route, _ = find_route(site, "GET", unquote(parts.path))
    return f"{site.name} {route.path} {sorted(key for key, _ in parse_qsl(parts.query))}"


def list_actions(view: PageView, rng: random.Random) -> Iterable[tuple[str, WebAction]]:
    """What can be done here: a key of the kind of action, and the action."""
    for element in view.elements:
        kind = f"{element.tag}:{element.attributes.get('type', '')}:{element.attributes.get('name', '')}"
        label = element.text if element.tag == "button" else ""
        if "Log out" not in element.text:
            yield f"click {kind} {label}", WebAction("click", element.id)
        yield f"hover {element.tag}", WebAction("hover", element.id)
        if element.tag in ("input", "textarea"):
            yield f"type {kind}", WebAction("type", element.id, rng.choice(TEXTS))
            yield f"search {kind}", WebAction("search", element.id, rng.choice(TEXTS))
        if element.tag == "select":
            option = choose_option(element, rng)
            yield f"select {kind}", WebAction("select_dropdown_option", element.id, option)
    for name in EMPTY:
        arguments = {
            "scroll": ("up", "down"),
            "press": KEYS,
            "goto": ("/", "/search?q=a", "/no/such/page", "http://example.com/"),
            "tab_focus": ("0", "1", "5"),
        }.get(name, ("",))
        for argument in arguments:
            yield f"{name} {argument}", WebAction(name, argument=argument)
    yield "click nothing", WebAction("click", "999")


def choose_option(element: PageElement, rng: random.Random) -> str:
    """An option of a menu, or one that is not there."""
    return rng.choice([*element.attributes.get("options", "").split("\n"), "no such option"]) or "all"


def walk_site(site: str, size: str, num_steps: int) -> dict[str, Any]:
    """Do what was done least on this kind of page."""
    rng, done = random.Random(f"{site}/{size}"), Counter[tuple[str, str]]()
    names: Counter[str] = Counter()
    with open_pair(start_content(site, size)) as pair:
        for _ in range(num_steps):
            route = name_route(pair.view.url)
            choices = list(list_actions(pair.view, rng))
            rng.shuffle(choices)
            if pair.view.url == BLANK and rng.random() < 0.7:
                pair.act(WebAction("goto", argument=f"http://{site}.localhost/"))
                continue
            weights = {"new_tab": 3, "goto": 2, "close_tab": 1}  # seldom: they lead away too early
            key, action = min(
                choices, key=lambda item: done[route, item[0]] + weights.get(item[1].name, 0) * rng.random()
            )
            done[route, key] += 1
            names[action.name] += 1
            pair.act(action)
        kinds = {route for route, _ in done}
        return {
            "steps": num_steps,
            "kinds": len(kinds),
            "effects": len(done),
            "actions": dict(names),
            "differences": pair.differences,
        }


def run_all(label: str, calls: dict[str, Callable[[], dict[str, Any]]], num_contexts: int) -> dict[str, Any]:
    """Several at once; an exception counts as a difference."""
    lock, started = threading.Lock(), time.monotonic()

    def run(item: tuple[str, Callable[[], dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
        try:
            found = item[1]()
        except Exception as error:
            found = {"differences": [f"{item[0]}: {type(error).__name__}: {str(error)[:500]}"]}
        with lock:
            for words in found["differences"]:
                print(f"  {label}: {words}", flush=True)
        return item[0], found

    with ThreadPoolExecutor(num_contexts) as pool:
        found = dict(pool.map(run, calls.items()))
    num = sum(len(row["differences"]) for row in found.values())
    print(f"{label}: {len(found)} in {time.monotonic() - started:.0f} s, {num} differences", flush=True)
    return found


def summarize_oracles(rows: dict[str, Any], chance: dict[str, float]) -> dict[str, Any]:
    """Shares of solved templates, and what differed."""
    scores = {name: row.get("scores", (0.0, 0.0)) for name, row in rows.items()}
    return {
        "templates": len(rows),
        "light_solved_share": sum(pair[0] for pair in scores.values()) / max(1, len(rows)),
        "chromium_solved_share": sum(pair[1] for pair in scores.values()) / max(1, len(rows)),
        "unsolved": sorted(name for name, pair in scores.items() if tuple(pair) != (1.0, 1.0)),
        "views_compared": sum(row.get("views", 0) for row in rows.values()),
        "differences": [words for row in rows.values() for words in row["differences"]][:MAX_TOLD],
        "chance": chance,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a quick look; writes nothing")
    parser.add_argument("--part", choices=("oracles", "pages", "actions"), help="only this part")
    parser.add_argument("--size", choices=("tiny", "full"), help="only this size")
    parser.add_argument("--contexts", type=int, default=4, help="browser contexts at once")
    parser.add_argument("--pages", type=int, default=150, help="pages of a site to compare")
    parser.add_argument("--steps", type=int, default=300, help="steps of the walk over a site")
    args = parser.parse_args()
    small, sizes = args.small, [args.size] if args.size else ["tiny", "full"]
    num_pages, num_steps = (5, 10) if small else (args.pages, args.steps)
    machine = {"machine": platform.machine(), "python": platform.python_version()}
    oracles, parity = dict[str, Any](machine), dict[str, Any](machine)
    for size in sizes:
        if args.part in (None, "oracles"):
            names = list(TEMPLATES)[:: 48 if small else 1]
            calls = {name: lambda name=name, size=size: play_oracle(name, size) for name in names}
            rows = run_all(f"oracles {size}", calls, args.contexts)
            oracles[size] = summarize_oracles(rows, play_by_chance(size, 20 if small else 1920))
            print(json.dumps(oracles[size]))
        for part, play, limit in (("pages", compare_pages, num_pages), ("actions", walk_site, num_steps)):
            if args.part in (None, part):
                walks = {site: lambda s=site, p=play, n=limit, size=size: p(s, size, n) for site in SITES}
                rows = run_all(f"{part} {size}", walks, args.contexts)
                print(json.dumps({site: {**row, "differences": 0} for site, row in rows.items()}))
                parity.setdefault(size, {})[part] = rows
    if not small:
        keep_result(RESULTS / "web_oracles.json", oracles)
        keep_result(RESULTS / "web_parity.json", parity)


def keep_result(path: Path, found: dict[str, Any]) -> None:
    """Write what was measured; sizes and parts that were not stay as they are."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name, value in found.items():
        is_part = isinstance(value, dict) and isinstance(kept.get(name), dict)
        kept[name] = {**kept[name], **value} if is_part else value
    path.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
