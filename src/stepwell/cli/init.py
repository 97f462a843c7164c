"""`stepwell init`: files to start from, one kind of file per row of `KINDS`.

A kind writes its files and names the commands to run next. The commands are printed so that they can
be copied as they are, whatever folder the files went to.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.cli.command import add_command


@dataclass(frozen=True, slots=True)
class Kind:
    """What `stepwell init KIND NAME` is. `write` makes the files, `next_commands` tells what to do then."""

    summary: str
    description: str
    examples: Sequence[tuple[str, str]]
    name_help: str
    write: Callable[[str, Path], list[Path]]
    next_commands: Callable[[str, Path], list[str]]


def _write_env(name: str, folder: Path) -> list[Path]:
    from stepwell.envs.template import write_template

    return write_template(name, folder)


def _env_commands(name: str, folder: Path) -> list[str]:
    from stepwell.envs.template import class_name

    where = name if folder == Path(".") else str(folder / f"{name}.py")
    env = f"{where}:{class_name(name)}"
    return [f"stepwell envs check {env}", f"stepwell train --env {env}"]


KINDS: dict[str, Kind] = {
    "env": Kind(
        summary="an environment of your own",
        description="Writes NAME.py, a small environment that passes the check as it is, and test_NAME.py.",
        examples=[
            ("stepwell init env maze", "writes maze.py and test_maze.py"),
            ("stepwell envs check maze:Maze", "checks it"),
            ("stepwell train --env maze:Maze", "trains an agent in it"),
        ],
        name_help="a Python name such as maze or tower_of_hanoi",
        write=_write_env,
        next_commands=_env_commands,
    ),
}


def add(commands: Any) -> None:
    parser = commands.add_parser("init", help="write files to start from", description="Files to start from.")
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for name, kind in KINDS.items():
        one = add_command(
            kinds,
            name,
            partial(run, kind),
            summary=kind.summary,
            description=kind.description,
            examples=kind.examples,
        )
        one.add_argument("name", metavar="NAME", help=kind.name_help)
        one.add_argument("--folder", type=Path, default=Path("."), help="where the files go (default: here)")


def run(kind: Kind, args: argparse.Namespace) -> int:
    for path in kind.write(args.name, args.folder):
        print(f"wrote {path}")
    print("now run")
    for command in kind.next_commands(args.name, args.folder):
        print(f"  {command}")
    return 0
