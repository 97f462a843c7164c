"""The page about the command line shows what the commands really print."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from stepwell.cli.main import COMMANDS, main

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text()


def sessions() -> list[list[tuple[str, str]]]:
    """Blocks of commands, each with the output that the page shows."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    return [re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |\Z)", b, flags=re.DOTALL | re.MULTILINE) for b in blocks]


@pytest.mark.parametrize("session", sessions(), ids=lambda session: session[0][0])
def test_a_command_prints_what_the_page_shows(
    session: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for command, shown in session:
        typed, _, line = command.rpartition(" | ")
        if typed:
            lines = shlex.split(typed)[1].replace("\\n", "\n")
            monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        main(shlex.split(line)[1:])
        printed = re.sub(r"[ ]+$", "", "".join(capsys.readouterr()), flags=re.MULTILINE)
        expected = re.escape(shown.rstrip("\n")).replace(r"\.\.\.", "[^ ]*")  # figures of one machine
        assert re.fullmatch(expected, printed.rstrip("\n")), printed


def test_the_page_has_a_section_for_every_command() -> None:
    assert set(re.findall(r"^## (\w+)$", PAGE, flags=re.MULTILINE)) == set(COMMANDS)
