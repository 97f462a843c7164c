"""`stepwell init`: files to begin with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.cli.command import add_command


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "init",
        help="write files to begin with",
        description="Files to begin with.",
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    env = add_command(
        kinds,
        "env",
        run_env,
        summary="a world of your own",
        description="Writes NAME.py, a small world that passes the check as it is, and test_NAME.py.",
        examples=[
            ("stepwell init env maze", "writes maze.py and test_maze.py"),
            ("stepwell envs check maze:Maze", "checks it"),
        ],
    )
    env.add_argument("name", metavar="NAME", help="a Python name such as maze or tower_of_hanoi")
    env.add_argument("--folder", type=Path, default=Path("."), help="where the file goes (the present one)")


def run_env(args: argparse.Namespace) -> int:
    from stepwell.envs.template import class_name, write_template

    for path in write_template(args.name, args.folder):
        print(f"wrote {path}")
    print(f"now: stepwell envs check {args.name}:{class_name(args.name)}")
    return 0
