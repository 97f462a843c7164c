"""`stepwell envs`: list environments, show one, check one, or open the sites of the web for a person."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, console
from stepwell.core.text import format_count

if TYPE_CHECKING:
    from pydantic import BaseModel

    from stepwell.envs import Env
    from stepwell.envs.robots import RobotEnv

_NAME_HELP = "a name of `stepwell envs list`, gymnasium:ID, or an import path module:Class"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "envs", help="list, show or check environments", description="The environments that agents act in."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = add_command(
        actions,
        "list",
        run_list,
        summary="list the built-in environments",
        examples=[("stepwell envs list", "")],
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    show = add_command(
        actions,
        "show",
        run_show,
        summary="show an environment: options, actions, and the guide that its agents get",
        examples=[
            ("stepwell envs show frozenlake", ""),
            ("stepwell envs show sokoban --set num_boxes=2", "with another option"),
            ("stepwell envs show gymnasium:CartPole-v1", "any Gymnasium environment"),
            ("stepwell envs show metaworld --set task=push", "a robot environment"),
        ],
    )
    check = add_command(
        actions,
        "check",
        run_check,
        summary="check that an environment keeps the contract",
        description="Ends with exit code 1 if it does not.",
        examples=[
            ("stepwell envs check frozenlake", ""),
            ("stepwell envs check maze:Maze", "your own"),
            ("stepwell envs check metaworld --set task=push", "a robot's, with its simulator"),
        ],
    )
    serve = add_command(
        actions,
        "serve",
        run_serve,
        summary="open our own web for a person with a browser",
        description="Serves the five sites on this machine until Ctrl-C.",
        examples=[
            ("stepwell envs serve web", "then open http://shop.localhost:8100/"),
            ("stepwell envs serve web --set size=tiny --port 9000", "the pages of tiny models"),
        ],
    )
    serve.add_argument("--port", type=int, default=8100, help="port on this machine; 8100 if not given")
    for command in (show, check, serve):
        command.add_argument("name", metavar="NAME", help=_NAME_HELP)
        command.add_argument(
            "--set",
            dest="options",
            metavar="key=value",
            action="append",
            default=[],
            help="an option of the environment",
        )


def run_list(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError
    from stepwell.envs import list_env_names, make_env

    envs = {}
    for name in list_env_names():
        try:
            envs[name] = make_env(name)
        except ConfigError as error:  # of an installed package: the others are still listed
            print(f"not listed: {error}", file=sys.stderr)
    if args.json:
        print(
            json.dumps(
                [{"name": name, "summary": _summarize_env(env)} for name, env in envs.items()], indent=2
            )
        )
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what it is", "actions", "per turn", "turns"):
        table.add_column(heading, overflow="fold")
    for name, env in envs.items():
        table.add_row(name, _summarize_env(env), *_describe_shape(env))
    console().print(table)
    print("\nand gymnasium:ID, or module:Class of your own (stepwell init env NAME writes one)")
    return 0


def run_show(args: argparse.Namespace) -> int:
    env = _open_env(args)
    names, per_turn, turns = _describe_shape(env)
    out = console()
    out.print(f"{args.name}: {_summarize_env(env)}", markup=False)
    length = (
        f"{per_turn} per turn, at most {turns}"
        if env.is_robot
        else f"up to {per_turn} per turn, {turns} turns"
    )
    out.print(f"actions: {names}; {length}", markup=False)
    out.print("\noptions (config env.options):")
    out.print(_tabulate_options(env.options))
    if env.is_robot:
        _show_robot(env, out)
        return 0
    out.print("\nthe guide for agents:")
    out.print(env.description.guide.rstrip(), markup=False)
    observation, _ = env.reset(seed=0)
    out.print("\nthe task of seed 0:")
    out.print(observation.text or format_count(len(observation.images), "image"), markup=False)
    if env.has_oracle:
        out.print(f"\na shortest solution of it: {', '.join(env.oracle()) or 'none'}", markup=False)
    return 0


def run_check(args: argparse.Namespace) -> int:
    from stepwell.config.loading import parse_options
    from stepwell.envs.check import check_env

    report = check_env(args.name, parse_options(args.options))
    print(report)
    return 0 if report.ok else 1


def run_serve(args: argparse.Namespace) -> int:
    import threading

    from stepwell.core.errors import ConfigError
    from stepwell.envs.web.options import SITES, WebOptions
    from stepwell.envs.web.sites.source import find_host

    options = _open_env(args).options
    if not isinstance(options, WebOptions):
        raise ConfigError(f"only web has sites to open; `stepwell serve envs --env {args.name}` serves it")
    size = options.size if "size" in options.model_fields_set else "full"
    port = find_host(options.world, size).serve(args.port)
    for site in SITES:
        print(f"http://{site}.localhost:{port}/")
    print("Ctrl-C ends it.", flush=True)
    threading.Event().wait()
    return 0


def _open_env(args: argparse.Namespace) -> Any:
    from stepwell.config.loading import parse_options
    from stepwell.envs import make_env

    return make_env(args.name, parse_options(args.options))


def _summarize_env(env: Env | RobotEnv) -> str:
    return (type(env).__doc__ or "").strip().split("\n")[0]


def _describe_shape(env: Any) -> tuple[str, str, str]:
    """Actions, actions per turn and turns per episode; opens no simulator."""
    if env.is_robot:
        return "numbers in [-1, 1]", "a chunk", f"{env.options.max_actions} actions"
    description = env.description
    tools = ", ".join(f"{tool.name}({', '.join(tool.properties)})" for tool in description.actions.tools)
    names = ", ".join(description.actions.names) or tools or "any text"
    return names, str(description.actions.max_per_turn), str(description.max_turns)


def _show_robot(env: RobotEnv, out: Any) -> None:
    """What a policy sees and does, and the task of one seed; opens the simulator."""
    description = env.description
    out.print("\nwhat a policy sees:")
    for name, spec in description.arrays.items():
        out.print(f"{name}: {spec.dtype} {list(spec.shape)}", markup=False)
    out.print(f"what it does: chunks of actions, {description.action_dim} numbers each", markup=False)
    env.reset(seed=0)
    out.print(f"\nthe task of seed 0: {env.task.instruction}", markup=False)
    from stepwell.core import StateForm

    out.print(env.state()[StateForm.NATURAL_LANGUAGE], markup=False)
    if env.has_oracle:
        action = ", ".join(f"{number:.2f}" for number in env.oracle())
        out.print(f"\nthe scripted expert's first action: {action}", markup=False)
    env.close()


def _tabulate_options(options: BaseModel) -> Any:
    from rich.table import Table

    from stepwell.config.schema import walk_settings
    from stepwell.config.writing import format_toml

    table = Table(box=None, pad_edge=False)
    for heading in ("option", "holds", "now", "meaning"):
        table.add_column(heading, overflow="fold")
    for setting in walk_settings(type(options)):
        value = getattr(options, setting.path[0]) if len(setting.path) == 1 else setting.default
        shown = "none" if value is None else format_toml(value)
        table.add_row(setting.key, setting.allowed_values, shown, setting.info.description or "")
    return table
