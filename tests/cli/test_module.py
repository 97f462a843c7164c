"""The command line as a module."""

from __future__ import annotations

import runpy
import sys

import pytest


@pytest.mark.parametrize("module", ["stepwell", "stepwell.cli.main"])
def test_the_command_line_runs_as_a_module(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stepwell", "--version"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("stepwell ")
