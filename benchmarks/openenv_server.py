"""FrozenLake behind OpenEnv's own server, for `env_service_speed.py`: the server, and callers that play it.

The callers write OpenEnv's messages by hand, which is the least that a caller can do. Tasks are made once and
kept on both sides, so a reset costs no board.

As a program, run by an interpreter that has openenv-core, it is the server: PORT SHOWN.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
BATCH, NUM_TASKS = 16, 50
CHILDREN: list[int] = []  # the servers' processes
Played = tuple[int, int, float]  # turns, bytes, seconds of processor time
SHOWN = {"text": {"observation": "text"}, "image": {"observation": "image"}}


def read_cpu_s() -> float:
    """Processor time so far, of this process and the servers."""
    total = time.process_time()
    for pid in CHILDREN:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def start_openenv(python: str, shown: str, counter: Sequence[str] = ()) -> Iterator[int]:
    """The port of OpenEnv's server, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {"PYTHONPATH": str(HERE.parent.parent / "src")}
    command = [*counter, python, str(HERE), str(port), shown]
    process = subprocess.Popen(command, env={**os.environ, **paths}, stderr=subprocess.DEVNULL)
    CHILDREN.append(process.pid)
    try:
        until = time.monotonic() + 600
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=9).close()
                break
            except OSError:
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit("OpenEnv's server did not start") from None
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
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
                    await ws.send(json.dumps({"type": "reset", "data": {"seed": turns % NUM_TASKS}}))
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


def play_openenv(port: int, seconds: float, most: int = sys.maxsize) -> Played:
    """One session, for so long or for so many turns."""
    from websockets.sync.client import connect

    rng, names = random.Random(0), ("Up", "Down", "Left", "Right")
    turns, num_bytes = 0, 0
    cpu_s = read_cpu_s()
    address = f"ws://127.0.0.1:{port}/ws"
    with connect(address, proxy=None, max_size=None, compression=None, open_timeout=99) as ws:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until and turns < most:
            ws.send(json.dumps({"type": "reset", "data": {"seed": turns % NUM_TASKS}}))
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
    """Our FrozenLake behind OpenEnv's server."""
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    from stepwell.envs.frozenlake.env import FrozenLake
    from stepwell.envs.frozenlake.options import FrozenLakeOptions
    from stepwell.envs.remote.wire import encode_png

    options = FrozenLakeOptions(**SHOWN[shown])
    make_task = cache(lambda seed: FrozenLake.make_task(options, seed))

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
            self._env = FrozenLake(options)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
            task = make_task(seed or 0)
            return self._seen(self._env.reset(options={"task": task})[0], 0.0, False, False)

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


if __name__ == "__main__":
    serve_openenv(int(sys.argv[1]), sys.argv[2])
