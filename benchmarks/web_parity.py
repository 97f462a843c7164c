"""Our sites in Chromium and in the light driver: the same pages, the same effects, and every oracle solves.

Three parts, each for the tiny and the full size, two drivers side by side on two snapshots of one world:

* oracles: the oracle of every template plays in both drivers. Every view after every action is compared, and
  both ends are judged. Chance plays in the light driver, by the environment's own random actions.
* pages: every page of each site (`web_pages.py`), opened by its address; of the full size, a sample, or all
  with `--pages 0` (25,698 pages; with `--site` one site at a time).
* effects: every kind of action on every route where it applies, from a page as it is opened.
* actions: a walk that does what was done least on this kind of page, with tabs and history behind it.

An action is one of the fourteen (exit ends an episode and has no page after it) on one kind of element. A
press is one of the keys that both know.

A view is the same if all of it is: address, title, HTML, text, elements, tabs, notice and viewport.

    python benchmarks/web_parity.py                      # results/web_oracles.json, results/web_parity.json
    python benchmarks/web_parity.py --small              # a quick look; writes nothing
    python benchmarks/web_parity.py --part pages --size full --pages 0 --site map   # all pages of one site
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.core import Task
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import BLANK
from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.options import SITES, WebOptions
from stepwell.envs.web.page import PageView
from stepwell.envs.web.sites.source import SitesSource
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import make_content

sys.path.insert(0, str(Path(__file__).parent))  # tests import this file from the repository's root
from web_pages import Effect, list_actions, map_site, name_kind, name_route, name_site, start_content

RESULTS = Path(__file__).parent / "results"
MAX_TOLD = 20
HOW = "benchmarks/web_parity.py, part by part and site by site; left: known pages that were not opened"


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
        self.opened = self.view = self._compare(*views, "open")

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


def compare_pages(site: str, size: str, max_pages: int, *, is_visitor: bool = False) -> dict[str, Any]:
    """Every page of a site (at most so many; 0: all), opened by its address; nothing is sent."""
    found = map_site(site, size, is_visitor=is_visitor, max_visits=20 * max_pages)
    chosen = found.pages[:max_pages] if max_pages else found.pages
    with open_site(site, size, is_visitor) as pair:
        for url in chosen:
            pair.act(WebAction("goto", argument=url))
        return {
            "pages": len(chosen),
            "left": len(found.pages) - len(chosen) + found.num_unread,
            "kinds": len({name_kind(url, is_visitor) for url in chosen}),
            "differences": pair.differences,
        }


@contextmanager
def open_site(site: str, size: str, is_visitor: bool) -> Any:
    """Both drivers on the first page of a site; a visitor is not logged in."""
    with open_pair(start_content(site, size)) as pair:
        if is_visitor:
            pair.act(WebAction("goto", argument=name_site(site, "/logout")))
        yield pair


def play_effects(site: str, size: str, share: int = 1, *, is_visitor: bool = False) -> dict[str, Any]:
    """Every kind of action on every route where it applies; of `share` effects one.

    An action may take away what another one needs: then both drivers start afresh.
    """
    waiting = map_site(site, size, is_visitor=is_visitor).effects[::share]
    names: Counter[str] = Counter()
    differences, num_starts, num_effects = list[str](), 0, len(waiting)
    while waiting:
        num_starts, num_left = num_starts + 1, len(waiting)
        with open_site(site, size, is_visitor) as pair:
            while waiting and (action := find_action(pair, waiting[-1])) is not None:
                waiting.pop()
                names[action.name] += 1
                pair.act(action)
            differences += pair.differences
        assert len(waiting) < num_left, f"{waiting[-1]} cannot be done"
    return {
        "effects": num_effects,
        "starts": num_starts,
        "actions": dict(names),
        "differences": differences,
    }


def find_action(pair: DriverPair, effect: Effect) -> WebAction | None:
    """The action of an effect on its page, which is opened unless it is there as it was; None: gone."""
    if pair.view.url != effect.url or pair.view != pair.opened:
        pair.opened = pair.act(WebAction("goto", argument=effect.url))
    actions = dict(reversed(list(list_actions(pair.view, random.Random(str(effect))))))
    return actions.get(effect.key)


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


def count_cpu_s(*, with_own: bool = True) -> float:
    """Processor seconds of this process and of all below it that still run."""
    family, stats = {os.getpid()}, dict[int, tuple[int, int]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    while more := {pid for pid, (parent, _) in stats.items() if parent in family} - family:
        family |= more
    counted = family if with_own else family - {os.getpid()}
    return sum(stats[pid][1] for pid in counted if pid in stats) / os.sysconf("SC_CLK_TCK")


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
    parser.add_argument("--part", choices=("oracles", "pages", "effects", "actions"), help="only this part")
    parser.add_argument("--size", choices=("tiny", "full"), help="only this size")
    parser.add_argument("--site", choices=SITES, help="only this site (all parts but the oracles)")
    parser.add_argument("--contexts", type=int, default=4, help="browser contexts at once")
    parser.add_argument("--pages", type=int, default=400, help="pages of a full site (of a tiny one: all)")
    parser.add_argument(
        "--share", type=int, default=4, help="of so many effects of a full site one is played"
    )
    parser.add_argument("--steps", type=int, default=300, help="steps of the walk over a site")
    args = parser.parse_args()
    small, sizes = args.small, [args.size] if args.size else ["tiny", "full"]
    sites = [args.site] if args.site else SITES
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    oracles, parity = dict[str, Any](), dict[str, Any]()
    for size in sizes:
        if args.part in (None, "oracles"):
            names = list(TEMPLATES)[:: 48 if small else 1]
            calls = {name: lambda name=name, size=size: play_oracle(name, size) for name in names}
            rows = run_all(f"oracles {size}", calls, args.contexts)
            oracles[size] = summarize_oracles(rows, play_by_chance(size, 20 if small else 1920))
            oracles[size]["machine"] = machine
            print(json.dumps(oracles[size]))
        num_pages = 5 if small else args.pages if size == "full" else 0
        share = 100 if small else args.share if size == "full" else 1
        for part, play, limit in (
            ("pages", compare_pages, num_pages),
            ("effects", play_effects, share),
            ("actions", walk_site, 10 if small else args.steps),
        ):
            if args.part in (None, part):
                began = count_cpu_s()
                walks = {site: partial(play, site, size, limit) for site in sites}
                if part != "actions":
                    more = {
                        f"{site}, visitor": partial(play, site, size, limit, is_visitor=True)
                        for site in sites
                    }
                    walks |= more
                rows = run_all(f"{part} {size}", walks, args.contexts)
                print(json.dumps({site: {**row, "differences": 0} for site, row in rows.items()}))
                where = f"{part}_{args.site}" if args.site else part
                parity.setdefault(size, {})[part] = rows
                parity[size][f"{where}_cpu_s"] = round(count_cpu_s() - began)
                parity[size][f"{where}_machine"] = machine
    if not small:
        for name, found in (("web_oracles.json", oracles), ("web_parity.json", parity)):
            if found:
                keep_result(RESULTS / name, {"how": HOW, **found})


def keep_result(path: Path, found: dict[str, Any]) -> None:
    """Write what was measured; sizes, parts and sites that were not stay as they are."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(merge_results(kept, found), indent=2) + "\n")


def merge_results(kept: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The found results over the kept ones; what was found of a site replaces all of it."""
    merged = dict(kept)
    for name, value in found.items():
        is_part = isinstance(value, dict) and isinstance(kept.get(name), dict) and "differences" not in value
        merged[name] = merge_results(kept[name], value) if is_part else value
    return merged


if __name__ == "__main__":
    main()
