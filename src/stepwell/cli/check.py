"""`stepwell check`: whether something of your own keeps the contract that the system builds on."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from stepwell.cli.command import add_command

KINDS = ("env", "credit", "loss", "recipe", "reward", "style", "shard")


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "check",
        run,
        summary="check what you add: credit, loss, recipe, reward, prompt style, shard rule, environment",
        description="Runs it on small examples and reports what does not hold. Ends with exit code 1 if "
        "anything does not.",
        examples=(
            ("stepwell check my_module:my_credit", "decorated with @credit(...)"),
            ("stepwell check my_module:my_reward --kind reward", "a plain function: say what it is"),
            ("stepwell check my_module:my_loss --set beta=0.5", "with another argument"),
            ("stepwell check my_module:RECIPE", "its functions too"),
            ("stepwell check grpo --kind credit", "a built-in one"),
        ),
    )
    parser.add_argument("name", metavar="NAME", help="module:name, folder/file.py:name, or a built-in name")
    parser.add_argument("--kind", choices=KINDS, help="the kind of the object, if it does not declare one")
    parser.add_argument(
        "--env",
        default="frozenlake",
        metavar="NAME",
        help="environment whose steps a reward part is checked on (frozenlake)",
    )
    parser.add_argument(
        "--set",
        dest="options",
        metavar="key=value",
        action="append",
        default=[],
        help="an argument of a credit function or loss; an option of an environment",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from stepwell.config.loading import parse_options
    from stepwell.contracts.kinds import check_object

    report = check_object(args.name, args.kind, options=parse_options(args.options), env=args.env)
    print(json.dumps(dataclasses.asdict(report), indent=2) if args.json else report)
    return 0 if report.ok else 1
