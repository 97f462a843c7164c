"""`stepwell view`: a local page over runs and pools, and controls of running ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command

if TYPE_CHECKING:
    from stepwell.view.app import ViewApp

_EXAMPLES = (
    ("stepwell view", "every run in runs/"),
    ("stepwell view runs/one runs/two", "two runs side by side"),
    ("stepwell view runs/NAME --do pause", "pause it after the present update; also resume, checkpoint, …"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "view",
        run,
        summary="see runs in the browser, live or finished",
        description="Curves, trajectories with their credit, pipeline and curriculum of runs and pools, from "
        "their files. Prints a link with a token; only this machine can open it.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "places", nargs="*", metavar="RUN", help="run folders, folders of runs, studies or pools (runs/)"
    )
    parser.add_argument("--port", type=int, default=7860, help="port to listen on; 0: a free one (7860)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--do", metavar="COMMAND", default=None, help=_list_commands())


def _list_commands() -> str:
    from stepwell.runs.control import COMMANDS

    return f"send a command to running runs instead: {', '.join(COMMANDS)}"


def run(args: argparse.Namespace) -> int:
    places = args.places or ["runs"]
    if args.do is not None:
        return _send_commands(places, args.do)
    from stepwell.services.http_server import serve
    from stepwell.view.access import make_token
    from stepwell.view.app import ViewApp

    view = ViewApp(places, token=make_token(), host=args.host)
    try:
        view.warm_up()
        serve(
            view.app,
            args.host,
            args.port,
            shutdown_timeout_s=2.0,
            greeting=lambda url: f"open {url}/?token={view.token}\n{_count_runs(view)}; Ctrl-C ends",
        )
    finally:
        view.close()
    return 0


def _count_runs(view: ViewApp) -> str:
    number = len(view.shelf.runs)
    return f"{number} run{'' if number == 1 else 's'}"


def _send_commands(places: list[str], command: str) -> int:
    from stepwell.runs.control import send_command

    for place in places:
        reply = send_command(Path(place).expanduser(), command)
        word = "paused" if reply["is_paused"] else "running"
        print(f"{place}: {word}, update {reply['update']} of {reply['num_updates']}")
    return 0
