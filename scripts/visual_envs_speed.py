"""Speed of the visual environments: drawings, scores, moves and images per second, on one thread.

OMP_NUM_THREADS=1 python scripts/visual_envs_speed.py
OMP_NUM_THREADS=1 python scripts/visual_envs_speed.py --seconds 0.2      # a quick look
OMP_NUM_THREADS=1 python scripts/visual_envs_speed.py --out speed.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepwell.envs import make_env
from stepwell.envs.navigation.room import NAMES
from stepwell.envs.svg import perceptual
from stepwell.envs.svg.icons import load_icons
from stepwell.envs.svg.markup import read_markup
from stepwell.envs.svg.options import SvgOptions
from stepwell.envs.svg.rasteriser import draw_svg
from stepwell.envs.svg.similarity import LikenessJudge


def rate(work: Callable[[], object], seconds: float) -> float:
    """Calls per second, after one that is not counted."""
    work()
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        work()
        count += 1
    return count / spent


def rows(seconds: float) -> Iterator[tuple[str, float]]:
    """What was done, and how often per second."""
    codes = itertools.cycle([svg for _, svg in load_icons("lucide", 700)])
    yield "svg: codes checked", rate(lambda: read_markup(next(codes)), seconds)
    yield "svg: icons drawn, 224 px", rate(lambda: draw_svg(next(codes), 224), seconds)
    target = draw_svg(next(codes), 224)
    for measure in ("pixels", "perceptual"):
        if measure == "pixels" or perceptual.find_weights_file() is not None:
            judge = LikenessJudge(SvgOptions(measure=measure))
            scored = rate(lambda judge=judge: judge.score(target, draw_svg(next(codes), 224)), seconds)
            yield f"svg: drawn and scored by {measure}", scored
    env = make_env("navigation", {"max_turns": 1000})
    env.reset(seed=0)
    actions = itertools.cycle(NAMES)
    yield "navigation: actions", rate(lambda: env.act(next(actions)), seconds)
    yield "navigation: states in words and JSON", rate(lambda: (env.act(next(actions)), env.state()), seconds)
    seeds = itertools.count()
    yield "navigation: tasks made", rate(lambda: env.make_task(env.options, next(seeds)), seconds)
    for size in (64, 128, 255):
        env = make_env("navigation", {"image_size": size})
        env.reset(seed=0)
        images = rate(lambda env=env: (env.act(next(actions)), env.render()), seconds)
        yield f"navigation: actions with an image, {size} px", images


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time per row")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    args = parser.parse_args()
    table, found = Table("what", "per second", box=None), []
    for what, per_second in rows(args.seconds):
        table.add_row(what, f"{per_second:,.0f}")
        found.append({"name": what, "per_s": round(per_second, 1)})
    Console().print(table)
    if args.out is not None:
        machine = f"{platform.machine()}, Python {platform.python_version()}, one thread"
        args.out.write_text(json.dumps({"machine": machine, "rows": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
