"""`stepwell study`: many configurations and seeds, one table and one plot."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.cli.command import add_command

_EXAMPLES = (
    ("stepwell study studies/recipes.toml --quick", "the short form, in minutes on a CPU"),
    ("stepwell study studies/recipes.toml --workers 16 --device cuda:0", "runs side by side on one GPU"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "study",
        run,
        summary="run many configurations and seeds and compare them",
        description="Finished runs are kept: the same command goes on where it stopped.",
        examples=_EXAMPLES,
        after_interrupt=lambda args: "Finished runs are kept: the same command goes on where it stopped.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a TOML file that describes the study")
    parser.add_argument("--quick", action="store_true", help="the file's short form")
    parser.add_argument("--workers", type=int, metavar="N", help="runs side by side; default: the cores")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (default) or cuda:0")
    parser.add_argument("--folder", type=Path, default=Path("studies"), help="where results go (studies)")


def run(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError

    if not args.file.is_file():
        raise ConfigError(f"study file {str(args.file)!r} does not exist; give the path of a TOML file")
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {args.workers}")
    from stepwell.pipeline.studies import run_study

    print(
        run_study(args.file, quick=args.quick, workers=args.workers, device=args.device, folder=args.folder)
    )
    return 0
