"""What one episode of MiniWoB++ costs: processor time of Python, Playwright and Chromium together.

    context   a fresh browser context for every episode
    load      one context; the page is loaded for every episode
    again     one context; a page that was loaded before begins again (`envs/web/miniwob/pages.py`)

An episode is a reset and one click on the pages of the preset miniwob-tiny, one after the other in one
environment. Processor time, because a crowded machine stretches every clock.

    python benchmarks/miniwob_cost.py           # results/miniwob/cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tomllib
from pathlib import Path

from stepwell.config.presets import read_preset_text
from stepwell.envs.registry import make_env
from stepwell.envs.web.miniwob import pages

RESULT = Path(__file__).parent / "results" / "miniwob" / "cost.json"
CLICK = 'do(action="Click", element="1")'
TICKS = os.sysconf("SC_CLK_TCK")


def read_times() -> dict[int, tuple[int, float]]:
    """Parent and processor seconds of every process, with those of its children that have ended."""
    times = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        times[int(path.parent.name)] = int(fields[1]), sum(int(tick) for tick in fields[11:15]) / TICKS
    return times


def measure_cpu() -> float:
    """Processor seconds of this process and all below it."""
    times, family = read_times(), {os.getpid()}
    while more := {pid for pid, (parent, _) in times.items() if parent in family} - family:
        family |= more
    return sum(times[pid][1] for pid in family if pid in times)


def measure_episodes(options: dict[str, object], count: int, *, is_fresh: bool) -> float:
    """Milliseconds of processor time an episode."""
    with make_env("web", options) as env:
        for seed in range(-count // 4, count):
            if seed == 0:
                start = measure_cpu()
            if is_fresh:
                env.close()
            env.reset(seed=seed % count)
            env.step([CLICK])
        return 1000 * (measure_cpu() - start) / count


def main() -> None:
    """Measure the three ways in turn, several times, and write the medians."""
    parser = argparse.ArgumentParser(description="Processor time of an episode of MiniWoB++.")
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    options, listed = tomllib.loads(read_preset_text("miniwob-tiny"))["env"]["options"], pages.BEGIN_AGAIN
    costs: dict[str, list[float]] = {"context": [], "load": [], "again": []}
    for _ in range(args.repeats):
        for way, found in costs.items():
            pages.BEGIN_AGAIN = listed if way == "again" else frozenset()
            found.append(round(measure_episodes(options, args.episodes, is_fresh=way == "context"), 1))
            print(way, found[-1], "ms", flush=True)
    result = {
        "episodes": args.episodes,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "cpu_ms": costs,
        "median_cpu_ms": {way: sorted(found)[len(found) // 2] for way, found in costs.items()},
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
