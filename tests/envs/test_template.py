"""The template of a new world: written, opened by import path, checked, and its own test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.core import InputError
from stepwell.envs.check import check_env
from stepwell.envs.template import write_template


def test_the_template_passes_the_checker_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = write_template("pearl_dive", tmp_path)
    assert [path.name for path in paths] == ["pearl_dive.py", "test_pearl_dive.py"]
    monkeypatch.setattr(sys, "path", list(sys.path))
    report = check_env("pearl_dive:PearlDive")
    monkeypatch.delitem(sys.modules, "pearl_dive")
    assert report.ok, str(report)
    assert report["oracle_solves_the_tasks"].detail == "solved 1.000 of 50 tasks"


def test_the_test_of_the_template_passes_and_fails_when_the_world_breaks(tmp_path: Path) -> None:
    world, test = write_template("river_walk", tmp_path)

    def run() -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True).returncode

    assert run() == 0
    world.write_text(world.read_text().replace('return ["More"] * gap if gap > 0', "return [] if gap > 0"))
    assert run() == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_my_world.py").write_text("mine")
    with pytest.raises(InputError, match=r"test_my_world\.py exists"):
        write_template("my_world", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_my_world.py"]


@pytest.mark.parametrize("name", ["", "My", "two words", "3d", "_hidden", "a-b", "a.b", "größe"])
def test_names_that_are_no_module_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be lower-case"):
        write_template(name, tmp_path)


@pytest.mark.parametrize("name", ["frozenlake", "random", "class", "numpy"])
def test_taken_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is taken"):
        write_template(name, tmp_path)
