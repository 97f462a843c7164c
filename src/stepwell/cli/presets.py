"""`stepwell presets`: every preset in one line, or one in full."""

from __future__ import annotations

import argparse
import tomllib
from typing import Any

from stepwell.cli.command import add_command, console, take_shown_name
from stepwell.core.names import suggest_name

_EXAMPLES = (
    ("stepwell presets", "all of them"),
    ("stepwell presets show frozenlake", "one, with all it sets"),
    ("stepwell train frozenlake", "trains with it"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "presets",
        run,
        summary="list the presets, or show one",
        description="A preset is a configuration that comes with Stepwell: `stepwell train NAME`.",
        examples=_EXAMPLES,
    )
    parser.add_argument("words", nargs="*", metavar="show NAME", help="show this one in full")


def run(args: argparse.Namespace) -> int:
    from stepwell.config.presets import list_preset_names, read_preset_text

    name = take_shown_name(args.words)
    if name is None:
        _print_table()
        return 0
    if name not in list_preset_names():
        from stepwell.core.errors import ConfigError

        raise ConfigError(f"there is no preset {name!r}{suggest_name(name, list_preset_names(), 'Presets')}")
    print(read_preset_text(name).rstrip())
    print(f"\n# stepwell train {name} --dry-run says what it would do; stepwell train {name} does it")
    return 0


def _print_table() -> None:
    from rich.table import Table

    from stepwell.config.presets import list_preset_names, read_preset_text

    table = Table(box=None, pad_edge=False)
    for heading in ("preset", "environment", "recipe", "what it trains"):
        table.add_column(heading, no_wrap=heading == "preset")
    for name in list_preset_names():
        text = read_preset_text(name)
        values = tomllib.loads(text)
        recipe = values.get("recipe", {}).get("name", "steppo")
        table.add_row(name, values.get("env", {}).get("name", "–"), recipe, explain_preset(text))
    console().print(table)
    print("\nstepwell presets show NAME shows one in full; stepwell train NAME trains with it")


def explain_preset(text: str) -> str:
    """The first line of a preset's opening comment."""
    return text.split("\n")[0].lstrip("# ").strip()
