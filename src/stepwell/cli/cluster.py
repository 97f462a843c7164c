"""`stepwell cluster`: the machines that work for runs, their workers, and what waits for them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, run_folder

if TYPE_CHECKING:
    from pathlib import Path

_EXAMPLES = (
    ("stepwell cluster status", "the Ray cluster of this machine"),
    ("stepwell cluster status --address HEAD:6379 --run runs/NAME", "another, and the queues of a run"),
    ("stepwell cluster status --host gpu1 --host https://gpu2.example", "machines that serve workers"),
)
_QUEUES = (
    ("simulators/episodes", "episodes under way"),
    ("generators/queue", "requests that wait for a generator"),
    ("trainers/queue", "groups that wait for the trainer"),
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cluster",
        help="show the machines that work for runs",
        description="Show the machines that work for runs: Ray clusters and hosts of workers.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = add_command(
        actions,
        "status",
        run_status,
        summary="show nodes, workers and queues",
        description="A worker's queue is the number of its calls that are not answered yet.",
        examples=_EXAMPLES,
    )
    status.add_argument(
        "--address", metavar="CLUSTER", help="a Ray cluster: auto (default), HOST:6379 or ray://HOST:10001"
    )
    status.add_argument(
        "--host",
        dest="hosts",
        metavar="HOST",
        action="append",
        default=[],
        help="a machine that runs `stepwell serve worker`, by name or URL (may be repeated)",
    )
    status.add_argument("--run", dest="folder", metavar="RUN", help="a run folder: its queues")


def run_status(args: argparse.Namespace) -> int:
    folder = run_folder(args.folder) if args.folder else None
    if args.address or not (args.hosts or folder):
        _print_ray(args.address or "auto")
    for host in args.hosts:
        _print_host(host)
    if folder is not None:
        _print_queues(folder)
    return 0


def _print_ray(address: str) -> None:
    from stepwell.core.errors import ConfigError
    from stepwell.workers.ray_cluster import connect_ray, import_ray, read_cluster

    if address == "local":
        raise ConfigError("--address local starts a cluster of its own, which has no workers; use auto")
    import_ray()
    connect_ray(address)
    found = read_cluster()
    alive = [node for node in found.nodes if node["is_alive"]]
    print(f"Ray: {len(alive)} nodes alive, {len(found.nodes) - len(alive)} lost")
    for node in alive:
        on_it = sum(worker.get("node") == node["id"] for worker in found.workers)
        room = f"{node['cpus']:g} CPUs  {node['gpus']:g} GPUs"
        print(f"  {node['id'][:8]}  {node['name']}  {room}  {on_it} workers")
    _print_workers(found.workers)


def _print_host(host: str) -> None:
    import asyncio

    from stepwell.workers.http_link import read_host

    found = asyncio.run(read_host(host))
    count = f"{found['num_workers']} of {found['max_workers']} workers"
    print(f"{host}: devices {', '.join(found['devices'])}; {count}")
    _print_workers(found["workers"])


def _print_workers(workers: Any) -> None:
    for worker in workers:
        if "problem" in worker:
            print(f"  {worker['name']}: no answer ({worker['problem']})")
            continue
        run = f"{worker['run']}  " if "run" in worker else ""
        print(
            f"  {run}{worker['name']}  {worker['kind'] or 'starting'}  pid {worker['pid']}  "
            f"{worker['memory_mb']:.0f} MB  queue {worker['num_pending']}"
        )


def _print_queues(folder: Path) -> None:
    from stepwell.monitors.jsonl import FILE_NAME, read_entries

    updates = [entry for entry in read_entries(folder / FILE_NAME) if entry.kind == "update"]
    values = updates[-1].values if updates else {}
    print(f"{folder}: update {updates[-1].update if updates else 0}")
    for key, words in _QUEUES:
        if key in values:
            print(f"  {values[key]:g} {words}")
