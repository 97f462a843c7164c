"""`stepwell report`: write a run's HTML report again from its files."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.cli.command import add_command, run_folder

_EXAMPLES = (("stepwell report runs/NAME", "also of a run that is not finished"),)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        run,
        summary="write the HTML report of a run",
        description="One file that needs nothing else: curves, before and after, replayable trajectories.",
        examples=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="RUN", help="a run folder")


def run(args: argparse.Namespace) -> int:
    folder = run_folder(args.folder)
    from stepwell.monitors.report import write_report

    print(write_report(folder))
    return 0
