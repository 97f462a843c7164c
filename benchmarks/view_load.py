"""The live view under load: 20 runs, one of them with 100,000 steps in its pool.

    python benchmarks/view_load.py [--steps 100000] [--runs 20] [--updates 1000] [--name x86]

Makes the run folders, starts `stepwell view` as its own process, and measures from outside: the time until
each page has arrived (median of 5, after the first one, which is listed apart), the processor time that the
server needs for it, first paint of four pages in Chromium if it is installed, and the memory of the server.
Processor times do not depend on what else the machine does. The result is in `results/view_load.json`, or in
`results/view_load_NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from stepwell.core import Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.envs.web.browser import BROWSERS
from stepwell.monitors import JsonlMonitor, LogEntry, RunInfo
from stepwell.pool import open_pool
from stepwell.pool.credit_records import TRAINED, CreditRecord
from stepwell.pool.credit_store import CreditStore
from stepwell.runs.machine import describe_machine

RESULTS = Path(__file__).parent / "results"
STEPS_EACH, PROMPT, ACTION = 10, 120, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--name", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.runs):
            write_metrics(Path(folder) / f"run-{number:02d}", number, args.updates)
        fill_pool(Path(folder) / "run-00", args.steps // STEPS_EACH)
        result: dict[str, Any] = vars(args) | measure(folder) | {"machine": describe_machine()}
    suffix = f"_{name}" if (name := result.pop("name")) else ""
    (RESULTS / f"view_load{suffix}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def write_metrics(run: Path, seed: int, num_updates: int) -> None:
    """A run folder with a record that looks like one."""
    run.mkdir(parents=True)
    kind = seed // 5 % 4
    recipe = ("steppo", "grpo", "rloo", "ppo")[kind]
    tables = ["[env]", 'name = "lake"', "[recipe]", f'name = "{recipe}"', "[train]"]
    (run / "config.toml").write_text("\n".join([f"seed = {seed}", *tables, f"num_updates = {num_updates}\n"]))
    rng, monitor = np.random.default_rng(seed), JsonlMonitor()
    monitor.start(RunInfo(run, name=run.name, env="lake", recipe=recipe, seed=seed, num_updates=num_updates))
    names = ("entropy", "kl", "clip_share", "explained_variance", "staleness/mean", "reward/task")
    for update in range(num_updates):
        level = (0.95 - 0.12 * kind) * (1 - np.exp(-(5 - kind) * update / num_updates)) - 0.02 * (seed % 5)
        level = float(np.clip(level + 0.1, 0, 1))
        if update % 20 == 0:
            values = {"success": level, "low": max(0.0, level - 0.05), "high": min(1.0, level + 0.05)}
            monitor.record(LogEntry("eval", update, float(update), 500 * update, values))
        noise = {name: float(rng.random()) for name in names}
        reward = level + 0.1 * float(rng.random())
        more = {"success": level, "reward": reward, "tokens": 9000.0, "tokens_per_s": 4000.0}
        monitor.record(LogEntry("update", update + 1, update + 0.5, 500 * update, {**more, **noise}))
    monitor.close()


def fill_pool(run: Path, num_trajectories: int) -> None:
    rng = np.random.default_rng(0)
    (run / "pool").mkdir()
    with open_pool(run / "pool") as pool, CreditStore(run, 50.0) as store:
        for start in range(0, num_trajectories, 200):
            batch = [make_trajectory(i, rng) for i in range(start, min(start + 200, num_trajectories))]
            pool.add(batch, group_sizes=4)
            store.write(1 + start // 200, [make_credit(one) for one in batch])


def make_trajectory(number: int, rng: np.random.Generator) -> Trajectory:
    """A dialogue whose prompt grows by each action."""
    prompt, steps = rng.integers(0, 1000, PROMPT).astype(np.int32), []
    for turn in range(STEPS_EACH):
        action = rng.integers(0, 1000, ACTION).astype(np.int32)
        reply = TokenAction(action, f"<think>turn {turn} of {number}</think><answer>Right</answer>")
        step = Step(TokenState(prompt), reply, rng.normal(-1, 0.5, ACTION).astype(np.float32))
        step.assign_reward({"task": float(turn == STEPS_EACH - 1)})
        steps.append(step)
        prompt = np.concatenate([prompt, action, rng.integers(0, 1000, 12).astype(np.int32)])
    status = Status.SUCCESS if number % 3 else Status.FAILURE
    task = Task("lake", {"board": number // 4}, instruction=f"walk to the goal on board {number // 4}")
    return Trajectory(task, steps, status, group=f"g{number // 4}", id=f"traj-{number:06d}")


def make_credit(one: Trajectory) -> CreditRecord:
    lengths = np.full(STEPS_EACH, ACTION, np.int32)
    size = STEPS_EACH * ACTION
    floats = np.linspace(-1, 1, size, dtype=np.float32)
    flags = np.full(size, TRAINED, np.uint8)
    versions = np.zeros((STEPS_EACH, 2), np.int32)
    return CreditRecord(one.id, 1, lengths, versions, flags, floats, floats[:STEPS_EACH], floats, floats + 1)


def measure(folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "stepwell.cli.main", "view", folder, "--port", "0"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            link = re.findall(r"http\S+", server.stdout.readline())[0]
            result: dict[str, Any] = {"start_s": time.perf_counter() - start}
            result["memory_at_start_mb"] = read_memory(server.pid)
            result["start_cpu_s"] = read_cpu(server.pid)
            result["pages"] = time_pages(link, server.pid)
            result["browser"] = time_browser(link)
            result["memory_mb"], result["load_average"] = read_memory(server.pid), os.getloadavg()[0]
        finally:
            server.terminate()
    return result


def read_memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def read_cpu(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def list_paths() -> dict[str, str]:
    run = "/run/run-00"
    return {
        "overview": "/",
        "overview by tokens": "/?x=tokens&seeds=lines",
        "run": run,
        "list": f"{run}/trajectories",
        "list, filtered": f"{run}/trajectories?outcome=failure&min_reward=0.5",
        "list, text": f"{run}/trajectories?text=board+17",
        "trajectory": f"{run}/trajectory?id=traj-004321",
        "siblings": f"{run}/group?name=g1080",
        "tree": f"{run}/tree",
    }


def time_pages(link: str, pid: int) -> dict[str, dict[str, float]]:
    found = {}
    with httpx.Client(base_url=link.partition("/?")[0], follow_redirects=True, timeout=60) as client:
        client.get(link).raise_for_status()
        for name, path in list_paths().items():
            times, used = [], [read_cpu(pid)]
            for _ in range(6):
                start = time.perf_counter()
                reply = client.get(path)
                times.append(1000 * (time.perf_counter() - start))
                reply.raise_for_status()
                used.append(read_cpu(pid))
            found[name] = {
                "first_ms": times[0],
                "ms": statistics.median(times[1:]),
                "first_cpu_ms": 1000 * (used[1] - used[0]),
                "cpu_ms": 1000 * (used[-1] - used[1]) / 5,
                "kb": len(reply.content) / 1000,
            }
    return found


def time_browser(link: str) -> dict[str, float] | None:
    """First paint of the overview, a run, the list and a trajectory, in a real browser."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    paint = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(link)
        shown = {name: list_paths()[name] for name in ("overview", "run", "list", "trajectory")}
        figures: dict[str, list[float]] = {f"{name}_first_paint_ms": [] for name in shown}
        base = link.partition("/?")[0]
        for _ in range(5):
            for name, where in shown.items():
                page.goto(base + where)
                page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
                figures[f"{name}_first_paint_ms"].append(page.evaluate(paint))
        browser.close()
    return {name: statistics.median(values) for name, values in figures.items()}


if __name__ == "__main__":
    main()
