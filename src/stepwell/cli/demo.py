"""`stepwell demo`: watch an agent learn in two to five minutes, without a GPU or a download."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from stepwell.cli.command import add_command, list_newest_runs

_EXAMPLES = (
    ("stepwell demo", ""),
    ("stepwell demo --seed 1 --folder elsewhere", "another seed, another place for the run"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        run,
        summary="watch an agent learn to deliver parcels",
        description="Trains a tiny model from random weights to fetch a parcel and bring it to a door, in "
        "two to five minutes on two cores, and measures it before and after on held-out tasks.",
        examples=_EXAMPLES,
        after_interrupt=_describe_resume,
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the whole run (default 0)")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the run goes (runs)")


def run(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError

    if args.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {args.seed}")
    args.began = time.time()
    from stepwell.runs.demo.demo import run_demo

    run_demo(args.seed, args.folder)
    return 0


def _describe_resume(args: argparse.Namespace) -> str:
    begun = list_newest_runs(args.folder, since=args.began) if hasattr(args, "began") else []
    return f"Continue, without the comparison, with: stepwell train --resume {begun[0]}" if begun else ""
