"""`stepwell serve worker`: this machine runs simulators and generators for training runs elsewhere."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.cli.command import add_command
from stepwell.cli.service_settings import (
    add_env_arguments,
    add_service_arguments,
    collect_env_settings,
    collect_service_settings,
    validate_settings,
)

_EXAMPLES = (
    ("stepwell serve worker --host 0.0.0.0 --keys keys.json", "for other machines, with keys"),
    ("stepwell serve worker --env sokoban --env maze:Maze", "these environments and no others"),
    ("stepwell serve worker --model qwen=/models/qwen", "a model that runs ask for as policy.model=qwen"),
    (
        "stepwell train CONFIG workers.mode=stream 'workers.simulators.devices=[\"HOST/cpu\"]'",
        "simulators there",
    ),
)


def add_worker(services: Any) -> None:
    """Add the command to those of `stepwell serve`."""
    parser = add_command(
        services,
        "worker",
        run_worker_host,
        summary="run simulators and generators for training runs on other machines",
        description="A run places workers here by the device HOST/cpu or HOST/cuda:0; its key is read from "
        "STEPWELL_WORKER_KEY.",
        examples=_EXAMPLES,
        after_interrupt=lambda args: "Its workers are ended.",
    )
    add_env_arguments(parser, "load")
    parser.add_argument(
        "--model",
        dest="models",
        metavar="NAME=DIR",
        action="append",
        help="a model to load (may be repeated); built-in ones need no naming",
    )
    parser.add_argument(
        "--device", dest="devices", metavar="DEVICE", action="append", help="cpu or cuda:0; default: all"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each generator")
    parser.add_argument("--max-workers", type=int, metavar="N", help="processes at once; default 16")
    parser.add_argument("--lease-s", type=float, metavar="SECONDS", help="silence that ends a worker (120)")
    add_service_arguments(parser, 8096)


def run_worker_host(args: argparse.Namespace) -> int:
    from stepwell.config.worker_service import WorkerServiceConfig
    from stepwell.envs.registry import read_options
    from stepwell.services.http_server import serve
    from stepwell.workers.placement import check_device

    given = {
        **collect_service_settings(args),
        **collect_env_settings(args),
        "models": None if args.models is None else _parse_models(args.models),
        "devices": None if args.devices is None else tuple(args.devices),
        "num_threads": args.threads,
        "max_workers": args.max_workers,
        "lease_s": args.lease_s,
    }
    config = validate_settings(WorkerServiceConfig, args.config, given)
    for device in config.devices:
        check_device("--device", device)
    for name in {*config.envs, *config.env_options}:
        read_options(name, config.env_options.get(name))  # refuse a misspelt name or option before serving
    from stepwell.services.worker_host import create_worker_host_app

    app = create_worker_host_app(config)
    serve(app, config.host, config.port, shutdown_timeout_s=config.shutdown_timeout_s)
    return 0


def _parse_models(texts: list[str]) -> dict[str, str]:
    """Parse `NAME=DIR` into directories by name; `DIR` alone has its last part as name."""
    from pathlib import Path

    from stepwell.core.errors import ConfigError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, folder = text.rpartition("=")
        path = Path(folder if equals else text).expanduser()
        if not (path / "config.json").is_file():
            raise ConfigError(f"--model {text}: {path} is not a model directory (it has no config.json)")
        found[name or path.name] = str(path.absolute())
    return found
