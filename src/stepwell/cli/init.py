"""`stepwell init`: files to start from, one entry of `STARTING_POINTS` per kind.

A kind writes its files and prints the commands to run next, ready to be copied, whatever the folder.
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
class StartingPoint:
    """One kind of `stepwell init KIND NAME`. `next_commands` gives the commands to run with the files."""

    summary: str
    description: str
    examples: Sequence[tuple[str, str]]
    name_help: str
    next_commands: Callable[[str, Path], list[str]]


def _list_env_commands(name: str, folder: Path) -> list[str]:
    from stepwell.cli.starting_files import name_env

    env = name_env(name, folder)
    return [f"stepwell envs check {env}", f"stepwell train --env {env}"]


def _list_agent_commands(name: str, folder: Path) -> list[str]:
    return [f"python {folder / name}.py", *_list_run_commands(name, folder)]


def _list_run_commands(name: str, folder: Path) -> list[str]:
    return [f"stepwell train {folder / name}.toml --dry-run", f"stepwell train {folder / name}.toml"]


def _list_reward_commands(name: str, folder: Path) -> list[str]:
    function = f"{folder / name}.py:reward"
    part = f'{{name="{name}", function="{function}", weight=0.1}}'
    train = f"stepwell train frozenlake 'rewards.parts=[{part}]'"
    return [f"stepwell check {function} --kind reward", f"{train} --dry-run", train]


STARTING_POINTS: dict[str, StartingPoint] = {
    "env": StartingPoint(
        summary="an environment of your own",
        description="Writes NAME.py, a small environment that passes the check, and test_NAME.py.",
        examples=[
            ("stepwell init env maze", "writes maze.py and test_maze.py"),
            ("stepwell envs check maze:Maze", "checks it"),
            ("stepwell train --env maze:Maze", "trains an agent in it"),
        ],
        name_help="a Python name such as maze or tower_of_hanoi",
        next_commands=_list_env_commands,
    ),
    "agent": StartingPoint(
        summary="an agent of your own that talks to a chat API",
        description="Writes NAME.py, an agent with the openai client that also writes its tasks and chats, "
        "and NAME.toml, how it is trained.",
        examples=[
            ("stepwell init agent helper", "writes helper.py and helper.toml"),
            ("python helper.py", "writes helper_tasks.jsonl and helper_chats.jsonl"),
            ("stepwell train helper.toml", "trains it"),
        ],
        name_help="a Python name such as helper",
        next_commands=_list_agent_commands,
    ),
    "run": StartingPoint(
        summary="the settings of a run",
        description="Writes NAME.toml, a run in FrozenLake with the settings that are changed most often.",
        examples=[
            ("stepwell init run first", "writes first.toml"),
            ("stepwell train first.toml --dry-run", "says what it would do"),
        ],
        name_help="a name such as first",
        next_commands=_list_run_commands,
    ),
    "reward": StartingPoint(
        summary="a reward of your own",
        description="Writes NAME.py, a function that is called for every step and adds a part to its reward.",
        examples=[("stepwell init reward brevity", "writes brevity.py")],
        name_help="a Python name such as brevity",
        next_commands=_list_reward_commands,
    ),
}


def add(commands: Any) -> None:
    words = "write files to start from"
    parser = commands.add_parser("init", help=words, description=f"{words.capitalize()}.")
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for name, kind in STARTING_POINTS.items():
        one = add_command(
            kinds,
            name,
            partial(run, name, kind),
            summary=kind.summary,
            description=kind.description,
            examples=kind.examples,
        )
        one.add_argument("name", metavar="NAME", help=kind.name_help)
        one.add_argument("--folder", type=Path, default=Path("."), help="where the files go (default: here)")


def run(name: str, kind: StartingPoint, args: argparse.Namespace) -> int:
    from stepwell.cli.starting_files import write_files

    for path in write_files(name, args.name, args.folder):
        print(f"wrote {path}")
    print("now run")
    for command in kind.next_commands(args.name, args.folder):
        print(f"  {command}")
    return 0
