"""What it costs to play in an environment on a server: turns per second, processor time and bytes per turn.

One caller plays FrozenLake with random one-action turns, whole episodes with their resets; turns are
counted, resets are not. Bytes are those of the messages in both directions, without HTTP's headers. Rows:

    in process            the environment itself
    frames                `RemoteEnv` as it connects by itself: bare frames after an upgrade, a turn per call
    HTTP, WebSocket       the same frames in HTTP requests, or on a WebSocket
    frames, N per call    N sessions stepped by one call; images raw or as PNG
    OpenEnv               the same environment behind OpenEnv's own server (its WebSocket, images as PNG)
    OpenEnv, N at once    N of its sessions, each on a connection of its own, played at the same time

The ways take turns in short rounds, so that other work on the machine disturbs all of them alike. Turns per
second are those of the median round; `times_openenv` is the median over the rounds of the ratio to OpenEnv in
the same round (many sessions are compared with its many sessions). Processor time is that of caller and
server together, over all rounds.

OpenEnv is played where `--openenv-python` names an interpreter that has openenv-core:

    python -m venv openenv && openenv/bin/pip install openenv-core
    python benchmarks/env_service_speed.py --openenv-python openenv/bin/python
    python benchmarks/env_service_speed.py --seconds 0.2 --rounds 3 --no-write      # a try

With `--before TREE`, a checkout of an earlier commit, only bare frames are played: at both versions in turns,
each with a client and a server of its own. The result is kept beside the others as `beside_before`.

Server and caller share the machine; the server is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RESULT = HERE.parent / "results" / "env_service_speed.json"
BATCH = 16
CHILDREN: list[int] = []  # the servers' processes
Played = tuple[int, int, float]  # turns, bytes, seconds of processor time
SHOWN = {"text": {"observation": "text"}, "image": {"observation": "image"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of playing per row and round")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--openenv-python", metavar="FILE", help="an interpreter that has openenv-core")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--before", metavar="TREE", help="a checkout of an earlier commit to compare with")
    parser.add_argument("--play-frames", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--openenv-server", nargs=2, metavar=("PORT", "SHOWN"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.openenv_server:
        serve_openenv(int(args.openenv_server[0]), args.openenv_server[1])
        return
    if args.play_frames:
        with serve_ours() as url:
            play_env(f"remote:{url}#frozenlake", "text", 0.3)
            print(json.dumps(play_env(f"remote:{url}#frozenlake", "text", args.seconds)))
        return
    machine = {"machine": platform.processor() or platform.machine(), "num_cpus": os.cpu_count()}
    machine["python"] = platform.python_version()
    if args.before:
        found = {"beside_before": {**machine, **compare_versions(args.before, args.seconds, args.rounds)}}
        print(json.dumps(found, indent=2))
    else:
        rows = measure(args.seconds, args.rounds, args.openenv_python)
        show(rows)
        how = {"seconds": args.seconds, "rounds": args.rounds, "batch": BATCH}
        found = {**machine, **how, "load_at_end": os.getloadavg()[0], "rows": rows}
    if not args.no_write:
        kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        RESULT.write_text(json.dumps({**kept, **found}, indent=2) + "\n")


def compare_versions(tree: str, seconds: float, num_rounds: int) -> dict[str, Any]:
    """Bare frames at an earlier commit and now, in turns; medians."""
    trees = {"before": Path(tree), "now": HERE.parent.parent}
    played: dict[str, list[Played]] = {name: [] for name in trees}
    for number in range(num_rounds):
        for name in trees if number % 2 else reversed(trees):
            path = {**os.environ, "PYTHONPATH": str(trees[name] / "src")}
            command = [sys.executable, str(HERE), "--play-frames", "--seconds", str(seconds)]
            found = subprocess.run(command, env=path, check=True, capture_output=True, text=True).stdout
            played[name].append(tuple(json.loads(found)))
    pairs = zip(played["now"], played["before"], strict=True)
    ratios = [(now[2] / now[0]) / (then[2] / then[0]) for now, then in pairs]
    result: dict[str, Any] = {"rounds": num_rounds, "seconds": seconds, "load_at_end": os.getloadavg()[0]}
    result["cpu_times_before"] = round(statistics.median(ratios), 3)
    for name, where in trees.items():
        git = ["git", "-C", str(where), "rev-parse", "--short", "HEAD"]
        cpu_us = [round(1e6 * cpu_s / turns) for turns, _, cpu_s in played[name]]
        result[name] = {
            "commit": subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip(),
            "cpu_us_per_turn": statistics.median(cpu_us),
            "turns_per_s": statistics.median(round(turns / seconds) for turns, _, _ in played[name]),
            "cpu_us_of_rounds": cpu_us,
        }
    return result


def measure(seconds: float, num_rounds: int, openenv_python: str | None) -> list[dict[str, Any]]:
    """All rows. The servers of both sides are up all the time."""
    rows = []
    with ExitStack() as stack:
        url = stack.enter_context(serve_ours())
        for shown in SHOWN:
            ways = list_ways(url, shown, seconds)
            if openenv_python is not None:
                port = stack.enter_context(start_openenv(openenv_python, shown))
                ways["OpenEnv"] = lambda port=port: play_openenv(port, seconds)
                ways[f"OpenEnv, {BATCH} at once"] = lambda port=port: play_openenv_batch(port, seconds)
            rounds = [{name: way() for name, way in ways.items()} for _ in range(num_rounds)]
            rows += [make_row(shown, name, rounds, seconds) for name in ways]
    return rows


def list_ways(url: str, shown: str, seconds: float) -> dict[str, Callable[[], Played]]:
    """How our environment is played."""
    socket_url = url.replace("http", "ws", 1)
    ways: dict[str, Callable[[], Played]] = {
        "in process": lambda: play_env("frozenlake", shown, seconds),
        "frames": lambda: play_env(f"remote:{url}#frozenlake", shown, seconds),
        "HTTP": lambda: play_env(f"remote:{url}#frozenlake", shown, seconds, has_frames=False),
        "WebSocket": lambda: play_env(f"remote:{socket_url}#frozenlake", shown, seconds),
        f"frames, {BATCH} per call": lambda: play_batch(url, shown, seconds, "raw"),
    }
    if shown == "image":
        ways[f"frames, {BATCH} per call, PNG"] = lambda: play_batch(url, "image", seconds, "png")
    return ways


@contextmanager
def serve_ours() -> Iterator[str]:
    """The address of our service, in a process of its own."""
    command = [sys.executable, "-m", "stepwell", "serve", "envs", "--env", "frozenlake", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    CHILDREN.append(server.pid)
    try:
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.kill()
        server.wait()


def read_cpu_s() -> float:
    """Processor time so far, of this process and the servers."""
    total = time.process_time()
    for pid in CHILDREN:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def make_row(shown: str, name: str, rounds: list[dict[str, Played]], seconds: float) -> dict[str, Any]:
    turns = [played[name][0] for played in rounds]
    row = {
        "shown": shown,
        "way": name,
        "turns_per_s": round(statistics.median(turns) / seconds),
        "cpu_us_per_turn": round(1e6 * sum(played[name][2] for played in rounds) / max(1, sum(turns))),
        "bytes_per_turn": round(sum(played[name][1] for played in rounds) / max(1, sum(turns))),
    }
    other = f"OpenEnv, {BATCH} at once" if str(BATCH) in name else "OpenEnv"
    if other in rounds[0] and not name.startswith("OpenEnv"):
        ratios = [played[name][0] / max(1, played[other][0]) for played in rounds]
        row["times_openenv"] = round(statistics.median(ratios), 2)
    return row


def play_env(name: str, shown: str, seconds: float, *, has_frames: bool = True) -> Played:
    """Turns that one environment plays in the time, and the bytes that took."""
    from stepwell.envs import make_env

    env, rng = make_env(name, SHOWN[shown]), random.Random(0)
    names = env.description.actions.names
    tasks = [env.make_task(env.options, seed) for seed in range(50)]
    servers = getattr(env, "servers", None)
    for server in servers.all if servers is not None else ():
        server.close()  # the connections of another way
        server._has_frames = has_frames

    def moved() -> int:
        return sum(s.num_sent + s.num_received for s in servers.all) if servers is not None else 0

    env.reset(options={"task": tasks[0]})  # the connection is there before the clock runs
    cpu_s = read_cpu_s()
    turns, num_bytes, until = 0, 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        env.reset(options={"task": tasks[turns % 50]})
        is_over, before = False, moved()
        while not is_over:
            _, _, terminated, truncated, _ = env.step((rng.choice(names),))
            is_over = terminated or truncated
            turns += 1
        num_bytes += moved() - before
    cpu_s = read_cpu_s() - cpu_s
    env.close()
    return turns, num_bytes, cpu_s


def play_batch(url: str, shown: str, seconds: float, images: str) -> Played:
    """The same with many sessions per call; those whose episode is over begin another."""
    from stepwell.envs.remote import wire
    from stepwell.envs.remote.servers import Server

    server, rng = Server(url), random.Random(0)
    made = server.call("create", {"env": "frozenlake", "options": SHOWN[shown], "count": BATCH})
    ids, names = made.header["sessions"], ("Up", "Down", "Left", "Right")
    turns, num_bytes, seed = 0, 0, 0
    waiting = list(ids)
    cpu_s = read_cpu_s()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if waiting:
            seeds = list(range(seed, seed + len(waiting)))
            seed += len(waiting)
            server.call("reset", {"sessions": waiting, "seeds": seeds, "images": images})
        header, arrays = wire.pack_actions([(rng.choice(names),) for _ in ids])
        before = server.num_sent + server.num_received
        frame = server.call("step", {**header, "sessions": ids, "images": images}, arrays)
        num_bytes += server.num_sent + server.num_received - before
        played = wire.unpack_turns(frame.header, frame.arrays)
        turns += len(played)
        waiting = [name for name, turn in zip(ids, played, strict=True) if turn.is_over]
    cpu_s = read_cpu_s() - cpu_s
    server.call("close", {"sessions": ids})
    server.close()
    return turns, num_bytes, cpu_s


@contextmanager
def start_openenv(python: str, shown: str) -> Iterator[int]:
    """The port of OpenEnv's server, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {"PYTHONPATH": str(HERE.parent.parent / "src")}
    command = [python, str(HERE), "--openenv-server", str(port), shown]
    process = subprocess.Popen(command, env={**os.environ, **paths}, stderr=subprocess.DEVNULL)
    CHILDREN.append(process.pid)
    try:
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit("OpenEnv's server did not start") from None
                time.sleep(0.2)
        yield port
    finally:
        process.kill()
        process.wait()


def play_openenv_batch(port: int, seconds: float) -> Played:
    """The same with many sessions that are played at the same time, each on its own connection."""
    from websockets.asyncio.client import connect

    async def play_one(number: int, until: float) -> tuple[int, int]:
        rng, turns, num_bytes = random.Random(number), 0, 0
        address = f"ws://127.0.0.1:{port}/ws"
        async with connect(address, proxy=None, max_size=None, compression=None) as ws:
            is_over = True
            while time.perf_counter() < until:
                if is_over:
                    await ws.send(json.dumps({"type": "reset", "data": {"seed": turns % 50}}))
                    await ws.recv()
                asked = json.dumps(
                    {"type": "step", "data": {"actions": [rng.choice(("Up", "Down", "Left", "Right"))]}}
                )
                await ws.send(asked)
                answer = await ws.recv()
                data = json.loads(answer)["data"]
                if data["observation"]["image"]:
                    opened_png(data["observation"]["image"])
                is_over = data["done"]
                turns += 1
                num_bytes += len(asked) + len(answer)
            await ws.send(json.dumps({"type": "close"}))
        return turns, num_bytes

    async def play_all() -> tuple[int, int]:
        until = time.perf_counter() + seconds
        played = await asyncio.gather(*(play_one(number, until) for number in range(BATCH)))
        return sum(turns for turns, _ in played), sum(size for _, size in played)

    cpu_s = read_cpu_s()
    return *asyncio.run(play_all()), read_cpu_s() - cpu_s


def play_openenv(port: int, seconds: float) -> Played:
    """OpenEnv's messages by hand, which is the least that a caller of it can do."""
    from websockets.sync.client import connect

    rng, names = random.Random(0), ("Up", "Down", "Left", "Right")
    turns, num_bytes = 0, 0
    cpu_s = read_cpu_s()
    with connect(f"ws://127.0.0.1:{port}/ws", proxy=None, max_size=None, compression=None) as ws:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            ws.send(json.dumps({"type": "reset", "data": {"seed": turns % 50}}))
            ws.recv()
            is_over = False
            while not is_over:
                asked = json.dumps({"type": "step", "data": {"actions": [rng.choice(names)]}})
                ws.send(asked)
                answer = ws.recv()
                data = json.loads(answer)["data"]
                if data["observation"]["image"]:
                    opened_png(data["observation"]["image"])
                is_over = data["done"]
                turns += 1
                num_bytes += len(asked) + len(answer)
        ws.send(json.dumps({"type": "close"}))
    return turns, num_bytes, read_cpu_s() - cpu_s


def opened_png(text: str) -> Any:
    import io

    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def serve_openenv(port: int, shown: str) -> None:
    """Our FrozenLake behind OpenEnv's server; run by an interpreter that has openenv-core."""
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    from stepwell.envs.frozenlake.env import FrozenLake
    from stepwell.envs.frozenlake.options import FrozenLakeOptions
    from stepwell.envs.remote.wire import encode_png

    class Moves(Action):
        actions: list[str]

    class Seen(Observation):
        text: str
        image: str
        success: bool

    class Lake(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._env = FrozenLake(FrozenLakeOptions(**SHOWN[shown]))

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
            return self._seen(self._env.reset(seed=seed or 0)[0], 0.0, False, False)

        def step(self, action: Moves, timeout_s: float | None = None, **_: Any) -> Seen:
            observation, reward, terminated, truncated, info = self._env.step(action.actions)
            return self._seen(observation, reward, terminated or truncated, bool(info["success"]))

        @property
        def state(self) -> State:
            return State()

        def _seen(self, observation: Any, reward: float, done: bool, success: bool) -> Seen:
            image = base64.b64encode(encode_png(observation.images[0])).decode() if observation.images else ""
            return Seen(text=observation.text, image=image, success=success, reward=reward, done=done)

    app = create_app(Lake, Moves, Seen, env_name="frozenlake", max_concurrent_envs=64)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("FrozenLake", "way", "turns/s", "CPU µs/turn", "bytes/turn", "x OpenEnv"):
        table.add_column(heading, justify="left" if heading in ("FrozenLake", "way") else "right")
    for found in rows:
        figures = [f"{found[key]:,}" for key in ("turns_per_s", "cpu_us_per_turn", "bytes_per_turn")]
        table.add_row(found["shown"], found["way"], *figures, str(found.get("times_openenv", "")))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
