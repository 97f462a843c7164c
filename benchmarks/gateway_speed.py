"""What the gateway costs: time added to a call, and calls per second, beside FastAPI alone and LiteLLM.

Behind every side answers an engine that takes no time, so that what is measured is the side itself:

* gateway   Stepwell's gateway; every call is matched to its history, rendered to ids and committed to
            a SQLite pool before the reply
* echo      a bare FastAPI application under the same uvicorn settings: reads the same JSON, writes the
            same completion. The least that any gateway in this stack costs
* LiteLLM   its proxy with one worker, forwarding to an upstream that answers at once. It records nothing

The gateway and LiteLLM check an API key. Sessions are conversations of four calls that send the history
back; N sessions at once are N connections without a pause. Servers run in processes of their own and take
turns, several rounds each; figures are medians of the rounds. The load generator is one process with raw
HTTP. With two cores it and a server fill the machine, and LiteLLM shares them with its upstream; `CPU per
call` is the processor time of the server process alone and does not depend on that.

LiteLLM runs in `.venvs/litellm`, made on first use (`gateway_speed/constraints.txt`).

    python benchmarks/gateway_speed.py                # about 6 minutes; the table, and the JSON beside it
    python benchmarks/gateway_speed.py --quick        # a small one, which writes nothing
    python benchmarks/gateway_speed.py --without litellm
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PARTS = Path(__file__).resolve().parent / "gateway_speed"
RESULT = Path(__file__).resolve().parent / "results" / "gateway_speed.json"
VENV = ROOT / ".venvs" / "litellm"
LITELLM = ("litellm[proxy]==1.106.2", "httptools")  # the parser that our side uses too; not among its own
CONCURRENCY = (1, 16, 64, 256)
STARTING_S = 120.0
sys.path.insert(0, str(PARTS))

from conversation import ANSWER, MODEL, UPSTREAM_MODEL, bodies  # noqa: E402
from load import Side, load, once, percentile  # noqa: E402
from servers import instant_engine  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side and concurrency")
    parser.add_argument("--without", choices=["litellm"], action="append", default=[])
    parser.add_argument(
        "--quick", action="store_true", help="1 round of 2 seconds each, up to 16 sessions; nothing written"
    )
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.no_write = 1, 2.0, True
    if "litellm" not in args.without:
        make_environment()
    with tempfile.TemporaryDirectory() as folder:
        sizes = CONCURRENCY[:2] if args.quick else CONCURRENCY
        result = compare(Path(folder), args.rounds, args.seconds, sizes, "litellm" not in args.without)
    show(result)
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def make_environment() -> None:
    """A virtual environment with LiteLLM's proxy, made once and again when its constraints change."""
    constraints = PARTS / "constraints.txt"
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == constraints.read_text():
        return
    print(f"making {VENV.relative_to(ROOT)} with {LITELLM[0]} (once)", flush=True)
    if not (VENV / "bin" / "python").exists():
        venv.create(VENV, with_pip=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-c", str(constraints), *LITELLM], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"cannot install {LITELLM[0]} into {VENV.relative_to(ROOT)}:\n{done.stderr[-2000:]}")
    stamp.write_text(constraints.read_text())


# --- servers ---------------------------------------------------------------------------------


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server process with its output in a file; stopped at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that one of our own servers printed."""
    until = time.monotonic() + STARTING_S
    while time.monotonic() < until and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.removeprefix("listening on ")
        time.sleep(0.05)
    raise SystemExit(f"a server did not start:\n{log.read_text()[-2000:]}")


def own_server(stack: ExitStack, name: str, folder: Path) -> Side:
    from stepwell.services.keys import create_key, hash_key

    key = create_key("load")
    log = folder / f"{name}.log"
    command = [sys.executable, str(PARTS / "servers.py"), name, str(folder)]
    process = stack.enter_context(started(command, log, LOAD_KEY_HASH=hash_key(key)))
    return Side(wait_for_url(process, log), process.pid, key, by_session=name == "gateway")


def litellm_server(stack: ExitStack, folder: Path) -> Side:
    upstream = own_server(stack, "upstream", folder).url
    key = f"sk-{secrets.token_hex(32)}"
    route = {
        "model_name": MODEL,
        "litellm_params": {
            "model": f"openai/{UPSTREAM_MODEL}",
            "api_base": f"{upstream}/v1",
            "api_key": "none",
        },
    }
    config, log, port = folder / "litellm.json", folder / "litellm.log", free_port()
    settings = {"telemetry": False, "set_verbose": False, "num_retries": 0}
    config.write_text(json.dumps({"model_list": [route], "litellm_settings": settings}))  # JSON is YAML
    command = [str(VENV / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    quiet["LITELLM_MASTER_KEY"] = key
    process = stack.enter_context(
        started([*command, "--port", str(port), "--num_workers", "1"], log, **quiet)
    )
    side = Side(f"http://127.0.0.1:{port}", process.pid, key)
    until = time.monotonic() + STARTING_S
    while process.poll() is None and time.monotonic() < until:
        try:
            asyncio.run(once(side, bodies()))
            return side
        except (OSError, RuntimeError):
            time.sleep(0.5)
    raise SystemExit(f"LiteLLM did not start:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# --- measuring -------------------------------------------------------------------------------


def compare(
    folder: Path, rounds: int, seconds: float, sizes: tuple[int, ...], with_litellm: bool
) -> dict[str, Any]:
    asked = bodies()
    num_recorded = 0
    with ExitStack() as stack:
        sides = {name: own_server(stack, name, folder) for name in ("gateway", "echo")}
        if with_litellm:
            sides["litellm"] = litellm_server(stack, folder)
        for name, side in sides.items():
            response = uvloop.run(once(side, asked))
            answer = json.loads(response.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]
            assert answer == ANSWER, f"{name} answered {answer!r}"
            num_recorded += name == "gateway"
            num_warm = measure(side, asked, 16, max(seconds, 3.0))[1]  # what is made at first use is made now
            num_recorded += num_warm if name == "gateway" else 0
        seen: dict[tuple[str, int], list[dict[str, float]]] = {}
        for _ in range(rounds):
            for num_sessions in sizes:
                for name, side in sides.items():
                    row, num_calls = measure(side, asked, num_sessions, seconds)
                    num_recorded += num_calls if name == "gateway" else 0
                    seen.setdefault((name, num_sessions), []).append(row)
    check_pool(folder / "pool.db", num_recorded)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": versions(with_litellm),
        "rounds": rounds,
        "seconds": seconds,
        "bytes_per_call": [len(body) for body in asked],
        "num_steps_recorded": num_recorded,
        "engine": direct(seconds),
        "rows": [
            {
                "side": name,
                "sessions": num,
                **{key: median(rows, key) for key in rows[0]},
            }
            for (name, num), rows in seen.items()
        ],
    }


def measure(
    side: Side, asked: list[bytes], num_sessions: int, seconds: float
) -> tuple[dict[str, float], int]:
    before = cpu_s(side.pid)
    latencies, num_calls = uvloop.run(load(side, asked, num_sessions, seconds))
    row = {
        "calls_per_s": len(latencies) / seconds,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "cpu_ms_per_call": (cpu_s(side.pid) - before) / num_calls * 1000,
    }
    return row, num_calls


def cpu_s(pid: int) -> float:
    """Processor time of a server, with the processes it started."""
    process = psutil.Process(pid)
    return sum(sum(p.cpu_times()[:2]) for p in [process, *process.children(recursive=True)])


def median(rows: list[dict[str, float]], key: str) -> float:
    return round(statistics.median(row[key] for row in rows), 4)


def direct(seconds: float) -> dict[str, float]:
    """The same engine, called in its own process."""
    from stepwell.core.protocols import Request
    from stepwell.core.step import TokenState
    from stepwell.rendering.tiny import build_tokenizer

    engine = instant_engine(build_tokenizer())
    state = TokenState(list(range(3, 503)))

    async def run() -> list[float]:
        latencies = []
        until = time.perf_counter() + min(seconds, 1.0)
        while (start := time.perf_counter()) < until:
            await engine.generate([Request(state)])
            latencies.append((time.perf_counter() - start) * 1000)
        return latencies

    latencies = uvloop.run(run())
    return {"p50_ms": round(percentile(latencies, 0.5), 4), "p99_ms": round(percentile(latencies, 0.99), 4)}


def check_pool(path: Path, num_calls: int) -> None:
    """Every call that was answered is a step in the pool."""
    from stepwell.pool import open_pool

    pool = open_pool(path)
    num_steps = sum(channel.num_steps for channel in pool.stats().channels.values())
    pool.close()
    assert num_steps == num_calls, f"{num_calls} calls were answered and {num_steps} steps recorded"


def versions(with_litellm: bool) -> dict[str, str]:
    found = {name: version(name) for name in ("stepwell", "fastapi", "uvicorn", "uvloop", "httptools")}
    if with_litellm:
        code = "from importlib.metadata import version; print(version('litellm'))"
        told = subprocess.run(
            [VENV / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
        )
        found["litellm"] = told.stdout.strip()
    return found


# --- the table -------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    engine = result["engine"]
    rows = {(row["side"], row["sessions"]): row for row in result["rows"]}
    table = Table(
        title=f"Gateway with an engine that answers at once, {result['machine']}",
        caption="the load generator runs on the same machine, and so does the upstream of LiteLLM",
    )
    for heading in (
        "",
        "sessions",
        "calls/s",
        "p50 ms",
        "p99 ms",
        "added p50 ms",
        "CPU per call ms",
        "vs LiteLLM",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row(
        "engine, called directly", "1", "", f"{engine['p50_ms']:.3f}", f"{engine['p99_ms']:.3f}", *"   "
    )
    for (name, num), row in rows.items():
        peer = rows.get(("litellm", num))
        table.add_row(
            name,
            str(num),
            f"{row['calls_per_s']:,.0f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['p50_ms'] - engine['p50_ms']:.2f}" if num == 1 else "",
            f"{row['cpu_ms_per_call']:.2f}",
            f"{row['calls_per_s'] / peer['calls_per_s']:.1f}×" if peer and name != "litellm" else "",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
