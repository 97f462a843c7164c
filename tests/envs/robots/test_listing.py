"""Robots on the command line: shown with their arrays, checked with their simulator, refused in one line."""

from __future__ import annotations

import importlib.util

import pytest

from stepwell.cli.main import main


def test_a_robots_env_is_shown_with_what_its_policy_sees(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("metaworld")
    assert main(["envs", "show", "metaworld", "--set", "task=push-v3", "--set", "max_actions=70"]) == 0
    out = capsys.readouterr().out
    assert "actions: numbers in [-1, 1]; a chunk per turn, at most 70 actions" in out
    assert "proprio: float32 [8]\nstate: float32 [31]\n" in out
    assert "the task of seed 0: push the puck to the goal\nThe hand is at (" in out
    assert "the scripted expert's first action: " in out


def test_a_robots_env_is_checked_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gymnasium_robotics")
    assert main(["envs", "check", "fetch", "--set", "max_actions=10"]) == 0
    assert "ok      a_chunk_is_its_actions_one_by_one" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("mani_skill") is not None, reason="ManiSkill is installed")
@pytest.mark.parametrize("action", ["show", "check"])
def test_a_missing_simulator_ends_the_command_with_one_line(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envs", action, "maniskill"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and 'pip install "stepwell[maniskill]"' in error
