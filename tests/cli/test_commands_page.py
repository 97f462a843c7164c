"""The page of commands says what the parsers say."""

from __future__ import annotations

from pathlib import Path

from stepwell.cli.main import COMMANDS, build_parser
from stepwell.cli.reference import list_commands, write_reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "commands.md"


def test_the_page_holds_exactly_the_reference() -> None:
    assert PAGE.read_text() == write_reference(), "run python -m stepwell.cli.reference docs/commands.md"


def test_every_command_and_every_option_is_on_the_page() -> None:
    text = PAGE.read_text()
    parsers = list(list_commands(build_parser()))
    assert len(parsers) > len(COMMANDS)
    for parser in parsers:
        section = text.split(f"# `{parser.prog}`\n")[1].split("\n## ")[0].split("\n### ")[0]
        for action in parser._actions:
            if action.option_strings and action.dest not in ("help", "debug"):
                assert f"`{action.option_strings[0]}" in section, (parser.prog, action.option_strings)


def test_every_argument_says_what_it_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []
