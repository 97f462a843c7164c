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

Both sides reset to tasks that were made before. Server and caller share the machine; the server is a process
of its own. Of the result file only what was measured is replaced:

    --before TREE     bare frames at an earlier commit, of which TREE is a checkout, and now, in turns
    --instructions    a turn's instructions in user space, of caller and server: bare frames and OpenEnv,
                      with --before bare frames of TREE as well. `valgrind` counts them: the difference of
                      two runs of different length, divided by their turns. What the kernel does is not
                      counted. Under valgrind a turn takes fifty times as long, so the limit that tells quick
                      turns from slow ones is raised.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from openenv_server import (
    BATCH,
    CHILDREN,
    NUM_TASKS,
    SHOWN,
    Played,
    play_openenv,
    play_openenv_batch,
    read_cpu_s,
    start_openenv,
)

HERE = Path(__file__).resolve()
RESULT = HERE.parent / "results" / "env_service_speed.json"
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
SERVE = """
import sys
from stepwell.cli.main import main
from stepwell.services.envs import sessions
sessions._QUICK_S *= float(sys.argv.pop(1))
sys.exit(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of playing per row and round")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--openenv-python", metavar="FILE", help="an interpreter that has openenv-core")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--before", metavar="TREE", help="a checkout of an earlier commit to compare with")
    parser.add_argument("--instructions", action="store_true", help="count those of a turn")
    parser.add_argument("--play-frames", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--play-counted", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play_counted:
        way, where, most = args.play_counted
        play = play_openenv if way == "OpenEnv" else play_frames
        print(play(where, 3600, int(most))[0])
        return
    if args.play_frames:
        with serve_ours() as url:
            play_env(f"remote:{url}#frozenlake", "text", 0.3)
            print(json.dumps(play_env(f"remote:{url}#frozenlake", "text", args.seconds)))
        return
    machine = {"machine": platform.processor() or platform.machine(), "num_cpus": os.cpu_count()}
    machine["python"] = platform.python_version()
    if args.instructions:
        counts = count_instructions(args.openenv_python, args.before)
        found = {"instructions": {**machine, **counts}}
        print(json.dumps(found, indent=2))
    elif args.before:
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
        cpu_us = [round(1e6 * cpu_s / turns) for turns, _, cpu_s in played[name]]
        result[name] = {
            "commit": read_commit(where),
            "cpu_us_per_turn": statistics.median(cpu_us),
            "turns_per_s": statistics.median(round(turns / seconds) for turns, _, _ in played[name]),
            "cpu_us_of_rounds": cpu_us,
        }
    return result


def count_instructions(openenv_python: str | None, before: str | None) -> dict[str, Any]:
    """Of a turn by each way: of the caller and of the server."""
    trees = {"frames": HERE.parent.parent, "OpenEnv": HERE.parent.parent, "frames before": Path(before or "")}
    ways = ["frames"] + ["OpenEnv"] * (openenv_python is not None) + ["frames before"] * (before is not None)
    found: dict[str, dict[str, Any]] = {}
    for way in ways:
        few, many = (play_counted(way, most, openenv_python, trees[way]) for most in (100, 500))
        turns = many[0] - few[0]
        caller, server = (round((many[i] - few[i]) / turns) for i in (1, 2))
        found[way] = {"caller": caller, "server": server, "both": caller + server}
    if before is not None:
        found["frames before"]["commit"] = read_commit(Path(before))
    return found


def read_commit(tree: Path) -> str:
    git = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def play_counted(way: str, most: int, openenv_python: str | None, tree: Path) -> tuple[int, int, int]:
    """Turns, and the instructions of the caller and of the server from their start to their end."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / name for name in ("caller", "server")]
        caller, server = ((*VALGRIND, f"--log-file={log}") for log in logs)
        os.environ |= {"PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
        if way == "OpenEnv":
            assert openenv_python is not None
            started: Any = start_openenv(openenv_python, "text", server)
        else:
            started = serve_ours(server)
        with started as where:
            command = [*caller, sys.executable, str(HERE), "--play-counted", way, str(where), str(most)]
            turns = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        counts = [re.findall(r"I +refs: +([\d,]+)", log.read_text())[-1] for log in logs]
    return (turns, *(int(count.replace(",", "")) for count in counts))  # type: ignore[return-value]


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
def serve_ours(counter: Sequence[str] = ()) -> Iterator[str]:
    """The address of our service, in a process of its own."""
    program = ["-c", SERVE, "100"] if counter else ["-m", "stepwell"]
    command = [*counter, sys.executable, *program, "serve", "envs", "--env", "frozenlake", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    CHILDREN.append(server.pid)
    try:
        yield server.stdout.readline().removeprefix("listening on ").strip()
    finally:
        server.terminate()
        server.wait()


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


def play_frames(url: str, seconds: float, most: int) -> Played:
    return play_env(f"remote:{url}#frozenlake", "text", seconds, most=most)


def play_env(
    name: str, shown: str, seconds: float, *, has_frames: bool = True, most: int = sys.maxsize
) -> Played:
    """Turns that one environment plays in the time, and the bytes that took."""
    from stepwell.envs import make_env

    env, rng = make_env(name, SHOWN[shown]), random.Random(0)
    names = env.description.actions.names
    tasks = [env.make_task(env.options, seed) for seed in range(NUM_TASKS)]
    servers = getattr(env, "servers", None)
    for server in servers.all if servers is not None else ():
        server.close()  # the connections of another way
        server._has_frames = has_frames

    def moved() -> int:
        return sum(s.num_sent + s.num_received for s in servers.all) if servers is not None else 0

    env.reset(options={"task": tasks[0]})  # the connection is there before the clock runs
    cpu_s = read_cpu_s()
    turns, num_bytes, until = 0, 0, time.perf_counter() + seconds
    while time.perf_counter() < until and turns < most:
        env.reset(options={"task": tasks[turns % NUM_TASKS]})
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
    asked = {"env": "frozenlake", "options": SHOWN[shown], "seeds": list(range(NUM_TASKS))}
    tasks = server.call("tasks", asked).header["tasks"]
    turns, num_bytes, number = 0, 0, 0
    waiting = list(ids)
    cpu_s = read_cpu_s()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if waiting:
            begun = [tasks[(number + i) % NUM_TASKS] for i in range(len(waiting))]
            number += len(waiting)
            server.call("reset", {"sessions": waiting, "tasks": begun, "images": images})
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
