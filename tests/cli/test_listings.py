"""Recipes and environments as the command line shows them, and an environment of one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stepwell.algos import RECIPES
from stepwell.cli.main import main
from stepwell.cli.presets import explain_preset
from stepwell.config.presets import list_preset_names, read_preset_text
from stepwell.envs import find_env_type, list_env_names
from stepwell.envs.registry import LANGUAGE_ENVS

SLOW_ENVS = ("multihop_qa", "paper_search", "web")  # what they look up takes seconds
DRAWN_ENVS = ("navigation", "primitive_skill", "svg")  # checked by their own folders, with smaller images


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_every_recipe_is_listed_with_its_slots(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "recipes").splitlines()
    rows = {line.split()[0]: " ".join(line.split()) for line in lines if line.split()}
    assert set(RECIPES) <= set(rows)
    assert rows["steppo"] == (
        "steppo step_gae ppo_loss, step ratio value_mse at state "
        "k3 × 0.001 in the loss task, process if offered"
    )
    assert rows["sft"] == "sft – sft_loss – – –"


def test_one_recipe_is_shown_with_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(line.split(maxsplit=1) for line in printed(capsys, "recipes", "gspo").splitlines())
    assert rows["loss"].strip() == (
        "ppo_loss(ratio=trajectory, clip_low=0.0003, clip_high=0.0004, aggregate=trajectory_mean)"
    )
    assert rows["needs"].strip() == "reference, groups"


def test_recipes_as_json_hold_what_the_recipes_hold(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "recipes", "--json"))
    assert [recipe["name"] for recipe in listed] == list(RECIPES)
    one = json.loads(printed(capsys, "recipes", "webrl", "--json"))
    assert one["loss"] == {"name": "webrl_loss", "kwargs": {"beta": 1.0}}
    assert one in listed


def test_every_env_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "envs", "list")
    for name in list_env_names():
        assert f"\n{name} " in out
    assert [env["name"] for env in json.loads(printed(capsys, "envs", "list", "--json"))] == list(
        list_env_names()
    )


def test_an_env_is_shown_as_its_options_make_it(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "envs", "show", "frozenlake", "--set", "size=6", "--set", "max_turns=7")
    assert "actions: Up, Down, Left, Right; up to 3 per turn, 7 turns" in out
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert "a whole number, at least 2, at most 32" in rows["size"]
    assert " 6 " in rows["size"]
    board = out.split("the task of seed 0:\n")[1].splitlines()[:6]
    assert all(len(row) == 6 for row in board)


def test_a_new_env_passes_the_check_and_is_played_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # opening an environment adds the present folder
    assert "  stepwell envs check tower_walk:TowerWalk\n" in printed(capsys, "init", "env", "tower_walk")
    printed(capsys, "envs", "check", "tower_walk:TowerWalk")
    assert "Step from one number to another" in printed(capsys, "envs", "show", "tower_walk:TowerWalk")
    assert main(["init", "env", "tower_walk"]) == 2
    assert "tower_walk" in capsys.readouterr().err


def test_commands_for_a_new_environment_in_another_folder_name_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = printed(capsys, "init", "env", "reed_walk", "--folder", "envs_of_mine")
    check = next(line.strip() for line in out.splitlines() if "envs check" in line)
    assert check == "stepwell envs check envs_of_mine/reed_walk.py:ReedWalk"
    assert "ok      oracle_solves_the_tasks" in printed(capsys, *check.split()[1:])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_ENVS else ())
        for name in LANGUAGE_ENVS
        if name not in DRAWN_ENVS
    ],
)
def test_the_built_in_envs_pass_the_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_size = "tiny" in str(find_env_type(name).Options.model_json_schema()["properties"].get("size"))
    options = ["--set", "size=tiny"] if has_size else []
    assert "ok      oracle_solves_the_tasks" in printed(capsys, "envs", "check", name, *options)


def test_tools_are_shown_with_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "envs", "show", "paper_search", "--set", "size=tiny")
    assert "actions: search(query), expand(id); up to" in out


def test_an_env_that_breaks_the_contract_ends_with_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    printed(capsys, "init", "env", "odd_walk")
    source = (tmp_path / "odd_walk.py").read_text()
    (tmp_path / "odd_walk.py").write_text(source.replace('["More"] * gap if', '["Less"] * gap if'))
    assert main(["envs", "check", "odd_walk:OddWalk"]) == 1
    assert "FAILED  oracle_solves_the_tasks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "method", ["__init__(self, options=None)", "begin(self, task, seed)", "oracle(self)"]
)
def test_an_env_that_exits_fails_its_check_and_ends_a_run_with_its_own_line(
    method: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "odd_exit.py"
    body = (
        "from stepwell.envs.frozenlake.env import FrozenLake\n\nclass Lake(FrozenLake):\n    name = 'exit'\n"
    )
    path.write_text(f"{body}    def {method}:\n        raise SystemExit(0)\n")
    assert main(["envs", "check", f"{path}:Lake"]) == 1
    assert "SystemExit: 0" in capsys.readouterr().out
    assert main(["train", "--env", f"{path}:Lake", "--dry-run"]) == 2
    assert "SystemExit: 0" in capsys.readouterr().err


def test_a_command_that_code_of_ones_own_ends_is_no_success(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "odd_tasks.py"
    body = (
        "from stepwell.envs.frozenlake.env import FrozenLake\n\nclass Lake(FrozenLake):\n    name = 'exit'\n"
    )
    path.write_text(f"{body}    @classmethod\n    def make_task(cls, options, seed): raise SystemExit(0)\n")
    assert main(["train", "--env", f"{path}:Lake", "--dry-run"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: code of your own ended the command") and "odd_tasks.py" in told


def test_presets_are_listed_with_what_they_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.split("\n")
    for name in list_preset_names():
        (line,) = [line for line in lines if line.split(" ")[0] == name]
        assert len(line.split()) > 6, line
        explained = explain_preset(read_preset_text(name))
        assert explained.endswith(".") and len(explained) < 120, explained  # the first line is a sentence


def test_a_preset_is_shown_in_full_and_a_typo_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "show", "frozenlake"]) == 0
    shown = capsys.readouterr().out
    assert "[env]" in shown and "stepwell train frozenlake" in shown
    assert main(["presets", "show", "frozenlak"]) == 2
    assert "did you mean 'frozenlake'?" in capsys.readouterr().err
