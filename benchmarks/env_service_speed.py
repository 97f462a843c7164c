"""What it costs to play in a world on a server: turns per second and bytes per turn, beside in-process.

One caller plays FrozenLake with random one-action turns, whole episodes with their resets; turns are
counted, resets are not. Bytes are those of the messages in both directions, without HTTP's headers. Rows:

    in process         the world itself
    HTTP, WebSocket    `RemoteEnv`, one turn per call; pictures raw or as PNG
    HTTP, N per call   N sessions stepped by one call
    OpenEnv            the same world behind OpenEnv's own server (its WebSocket, pictures as base64 PNG)

OpenEnv is played where `--openenv-python` names an interpreter that has openenv-core:

    python -m venv openenv && openenv/bin/pip install openenv-core
    python benchmarks/env_service_speed.py --openenv-python openenv/bin/python
    python benchmarks/env_service_speed.py --seconds 0.5 --no-write                 # a try

Server and caller share the machine; the server is a process of its own.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RESULT = HERE.parent / "results" / "env_service_speed.json"
BATCH = 16
ROUNDS = 3
SHOWN = {"text": {"observation": "text"}, "image": {"observation": "image"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of playing per row and round")
    parser.add_argument("--openenv-python", metavar="FILE", help="an interpreter that has openenv-core")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--openenv-server", nargs=2, metavar=("PORT", "SHOWN"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.openenv_server:
        serve_openenv(int(args.openenv_server[0]), args.openenv_server[1])
        return
    rows = measure(args.seconds, args.openenv_python)
    show(rows)
    if not args.no_write:
        machine = {"machine": platform.processor() or platform.machine(), "num_cpus": os.cpu_count()}
        result = {**machine, "python": platform.python_version(), "batch": BATCH, "rows": rows}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def measure(seconds: float, openenv_python: str | None) -> list[dict[str, Any]]:
    """All rows; the best of some rounds each, so that other work on the machine weighs less."""
    rows = []
    command = [sys.executable, "-m", "stepwell", "serve", "envs", "--env", "frozenlake", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().removeprefix("listening on ").strip()
    try:
        for shown in SHOWN:
            ways: dict[str, Callable[[], tuple[int, int]]] = {
                "in process": lambda shown=shown: play_env("frozenlake", shown, seconds),
                "HTTP": lambda shown=shown: play_env(f"remote:{url}#frozenlake", shown, seconds),
                "WebSocket": lambda shown=shown: play_env(
                    f"remote:{url.replace('http', 'ws', 1)}#frozenlake", shown, seconds
                ),
                f"HTTP, {BATCH} per call": lambda shown=shown: play_batch(url, shown, seconds, "raw"),
            }
            if shown == "image":
                ways[f"HTTP, {BATCH} per call, PNG"] = lambda: play_batch(url, "image", seconds, "png")
            rows += [row(shown, name, way, seconds) for name, way in ways.items()]
            if openenv_python is not None:
                rows.append(openenv_row(openenv_python, shown, seconds))
    finally:
        server.kill()
        server.wait()
    return rows


def row(shown: str, name: str, way: Callable[[], tuple[int, int]], seconds: float) -> dict[str, Any]:
    rounds = [way() for _ in range(ROUNDS)]
    turns, num_bytes = max(rounds)
    return {
        "shown": shown,
        "way": name,
        "turns_per_s": round(turns / seconds),
        "bytes_per_turn": round(num_bytes / max(1, turns)),
    }


def play_env(name: str, shown: str, seconds: float) -> tuple[int, int]:
    """Turns that one world plays in the time, and the bytes that took."""
    from stepwell.envs import make_env

    env, rng = make_env(name, SHOWN[shown]), random.Random(0)
    names = env.description.actions.names
    tasks = [env.make_task(env.options, seed) for seed in range(50)]
    servers = getattr(env, "servers", None)

    def moved() -> int:
        return sum(s.num_sent + s.num_received for s in servers.all) if servers is not None else 0

    env.reset(options={"task": tasks[0]})  # the connection is there before the clock runs
    turns, num_bytes, until = 0, 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        env.reset(options={"task": tasks[turns % 50]})
        is_over, before = False, moved()
        while not is_over:
            _, _, terminated, truncated, _ = env.step((rng.choice(names),))
            is_over = terminated or truncated
            turns += 1
        num_bytes += moved() - before
    env.close()
    return turns, num_bytes


def play_batch(url: str, shown: str, seconds: float, images: str) -> tuple[int, int]:
    """The same with many sessions per call; those whose episode is over begin another."""
    from stepwell.envs.remote import wire
    from stepwell.envs.remote.servers import Server

    server, rng = Server(url), random.Random(0)
    made = server.call("create", {"env": "frozenlake", "options": SHOWN[shown], "count": BATCH})
    ids, names = made.header["sessions"], ("Up", "Down", "Left", "Right")
    turns, num_bytes, seed = 0, 0, 0
    waiting = list(ids)
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
    server.call("close", {"sessions": ids})
    server.close()
    return turns, num_bytes


def openenv_row(python: str, shown: str, seconds: float) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {"PYTHONPATH": str(HERE.parent.parent / "src")}
    command = [python, str(HERE), "--openenv-server", str(port), shown]
    process = subprocess.Popen(command, env={**os.environ, **paths}, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit("OpenEnv's server did not start") from None
                time.sleep(0.2)
        return row(shown, "OpenEnv, WebSocket", lambda: play_openenv(port, seconds), seconds)
    finally:
        process.kill()
        process.wait()


def play_openenv(port: int, seconds: float) -> tuple[int, int]:
    """OpenEnv's messages by hand, which is the least that a caller of it can do."""
    from websockets.sync.client import connect

    rng, names = random.Random(0), ("Up", "Down", "Left", "Right")
    turns, num_bytes = 0, 0
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
    return turns, num_bytes


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

    app = create_app(Lake, Moves, Seen, env_name="frozenlake", max_concurrent_envs=16)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("FrozenLake", "way", "turns/s", "bytes/turn"):
        table.add_column(heading, justify="right" if "/" in heading else "left")
    for found in rows:
        table.add_row(
            found["shown"], found["way"], f"{found['turns_per_s']:,}", f"{found['bytes_per_turn']:,}"
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
