"""What `stepwell init` writes works as written, and so do the commands it prints."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli.init import STARTING_POINTS
from stepwell.cli.main import main
from stepwell.cli.starting_files import FILES, SOURCES, write_files
from stepwell.core import InputError
from stepwell.envs.check import check_env


def test_the_template_passes_the_checker_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = write_files("env", "pearl_dive", tmp_path)
    assert [path.name for path in paths] == ["pearl_dive.py", "test_pearl_dive.py"]
    monkeypatch.setattr(sys, "path", list(sys.path))
    report = check_env("pearl_dive:PearlDive")
    monkeypatch.delitem(sys.modules, "pearl_dive")
    assert report.ok, str(report)
    assert report["oracle_solves_the_tasks"].detail == "solved 1.000 of 50 tasks"


@pytest.mark.parametrize(("folder", "env"), [(".", "reef:Reef"), ("mine", "mine/reef.py:Reef")])
def test_an_environment_names_itself_as_the_printed_commands_do(
    folder: str,
    env: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "env", "reef", "--folder", folder]) == 0
    printed = capsys.readouterr().out
    text = (tmp_path / folder / "reef.py").read_text()
    for command in (f"stepwell envs check {env}", f"stepwell train --env {env}"):
        assert command in printed and f"`{command}`" in text


@pytest.mark.slow
def test_the_test_of_the_template_passes_and_fails_when_the_env_breaks(tmp_path: Path) -> None:
    file, test = write_files("env", "river_walk", tmp_path)

    def run() -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True).returncode

    assert run() == 0
    file.write_text(file.read_text().replace('return ["More"] * gap if gap > 0', "return [] if gap > 0"))
    assert run() == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_my_world.py").write_text("mine")
    with pytest.raises(InputError, match=r"test_my_world\.py exists"):
        write_files("env", "my_world", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_my_world.py"]


@pytest.mark.parametrize("name", ["", "My", "two words", "3d", "_hidden", "a-b", "a.b", "größe"])
def test_names_that_are_no_module_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be lower-case"):
        write_files("env", name, tmp_path)


@pytest.mark.parametrize("name", ["frozenlake", "random", "class", "numpy"])
def test_taken_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is taken"):
        write_files("env", name, tmp_path)


def printed_commands(out: str) -> list[list[str]]:
    return [shlex.split(line) for line in out.split("now run\n")[1].splitlines()]


@pytest.mark.parametrize(("kind", "folder"), [("agent", "of_mine"), ("run", "."), ("reward", "of_mine")])
def test_the_printed_dry_run_of_a_kind_works_as_written(
    kind: str,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"otter_{kind}"
    assert main(["init", kind, name, "--folder", folder]) == 0
    *prepare, dry_run, train = printed_commands(capsys.readouterr().out)
    for program, *arguments in prepare:
        if program == "stepwell":
            assert main(arguments) == 0
        else:
            assert program == "python"
            runpy.run_path(arguments[0], run_name="__main__")
    assert dry_run == [*train, "--dry-run"] and train[0] == "stepwell"
    assert main(dry_run[1:]) == 0
    out = capsys.readouterr().out
    assert "what would be done" in out and "warning" not in out
    told = {"agent": f"{name}_chats.jsonl", "run": "frozenlake", "reward": name}
    assert told[kind] in out


def test_the_tasks_of_a_new_agent_are_disjoint_from_what_its_chats_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent, _ = write_files("agent", "badger", tmp_path)
    runpy.run_path(str(agent), run_name="__main__")
    tasks = [json.loads(line) for line in (tmp_path / "badger_tasks.jsonl").read_text().splitlines()]
    chats = [json.loads(line) for line in (tmp_path / "badger_chats.jsonl").read_text().splitlines()]
    shown = {chat["messages"][0]["content"] for chat in chats}
    held_out = {task["question"] for task in tasks if task["split"] == "held_out"}
    assert len(held_out) == 95 and shown.isdisjoint(held_out)


def test_every_kind_has_files_and_every_template_is_of_a_kind() -> None:
    assert set(STARTING_POINTS) == set(FILES)
    used = {source for files in FILES.values() for source in files.values()}
    assert used == {path.name for path in SOURCES.iterdir()}
