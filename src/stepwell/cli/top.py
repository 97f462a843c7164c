"""`stepwell top`: one running run in the terminal, with keys to control it."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.cli.command import add_command, run_folder

_EXAMPLES = (("stepwell top runs/NAME", "p pauses, r resumes, c saves, e evaluates, s stops, q leaves"),)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "top",
        run,
        summary="watch a run in the terminal, and control it",
        description="Shows figures and small curves, redrawn as the run records new ones. Works over ssh.",
        examples=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="RUN", help="a run folder")
    parser.add_argument("--once", action="store_true", help="print it once and end")


def run(args: argparse.Namespace) -> int:
    folder = run_folder(args.folder)
    from stepwell.view.terminal import print_once, watch_run

    if args.once:
        print_once(folder)
    else:
        watch_run(folder)
    return 0
