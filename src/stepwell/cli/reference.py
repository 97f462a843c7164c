"""The page `docs/commands.md`: every command with its arguments, written from the parsers.

    python -m stepwell.cli.reference docs/commands.md     write the page again

The page and `--help` have one source. A test compares the page with `write_reference()`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from stepwell.cli.main import build_parser

HEAD = """\
# Commands

Every command with its arguments, as `stepwell COMMAND --help` prints them. [The command line](cli.md) \
explains them, with examples of what they print.

<!-- written by stepwell.cli.reference -->
"""


def write_reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_write_command(parser) for parser in list_commands(build_parser()))])


def list_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers below this one, each followed by its own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield child
                yield from list_commands(child)


def _write_command(parser: argparse.ArgumentParser) -> str:
    level = "##" if parser.prog.count(" ") == 1 else "###"
    parts = [f"{level} `{parser.prog}`", _escape(parser.description or "")]
    rows = [row for action in parser._actions if (row := _write_row(action))]
    if rows:
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
    if parser.epilog:
        examples = parser.epilog.removeprefix("examples:\n")
        parts.append("```text\n" + re.sub(r"^  ", "", examples, flags=re.MULTILINE) + "\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _write_row(action: argparse.Action) -> str:
    """One line of the table; empty for what every command has, and for what is hidden."""
    if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.dest == "debug":
        return ""
    if action.help is argparse.SUPPRESS:
        return ""
    value = _describe_value(action)
    shown = ", ".join(f"{name} {value}".strip() for name in action.option_strings) or value
    return f"| {_code(shown)} | {_escape((action.help or '').replace('%%', '%'))} |"


def _describe_value(action: argparse.Action) -> str:
    """What is written after the option, such as `N` or `A B`."""
    if action.nargs == 0:
        return ""
    name = action.metavar or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        name = "{" + ",".join(map(str, action.choices)) + "}"
    if isinstance(name, tuple):
        return " ".join(name)
    return f"{name} …" if action.nargs in ("*", "+") else name


def _code(text: str) -> str:
    return "`" + text.replace("|", r"\|") + "`"


def _escape(text: str) -> str:
    """Plain text for a cell: one line, without markup."""
    flat = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"([|<>*_\[\]])(?![^`]*`[^`]*$)", r"\\\1", flat)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(write_reference(), encoding="utf-8")
