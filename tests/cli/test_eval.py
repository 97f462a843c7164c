"""`stepwell eval` measures runs and models, and says what it cannot measure."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from stepwell.cli.main import main


def test_a_run_is_measured_with_its_own_settings(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["eval", str(run), "--num-tasks", "6", "--samples", "2", "--temperature", "1", "--seed", "3"]
    assert main([*argv, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["env"] == "frozenlake"
    assert figures["model"] == str(run / "checkpoints" / "best")
    assert [figures[key] for key in ("num_tasks", "samples_per_task", "temperature", "seed")] == [
        6,
        2,
        1.0,
        3,
    ]
    assert 0 <= figures["low"] <= figures["success"] <= figures["high"] <= 1
    assert main(argv) == 0
    table = capsys.readouterr().out
    assert f"success    {figures['success']:.3f}" in table
    assert f"pass@2     {figures['pass@2']:.3f}" in table


def test_one_checkpoint_is_measured_like_its_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for agent in (run, run / "checkpoints" / "best"):
        assert main(["eval", str(agent), "eval.num_tasks=4", "--json"]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0].pop("checkpoint") == "the best of those that were evaluated, of update 0"
    assert main(["eval", str(run), "--checkpoint", "best", "--num-tasks", "4", "--json"]) == 0
    assert outputs[0] == outputs[1] == json.loads(capsys.readouterr().out)


def test_a_checkpoint_that_a_run_does_not_have_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--checkpoint", "bets"]) == 2
    assert f"{run} has no 'bets'; did you mean 'best'?" in capsys.readouterr().err
    assert main(["eval", "tiny-0.3m", "--checkpoint", "best"]) == 2
    assert "'tiny-0.3m' is not a run folder" in capsys.readouterr().err


def test_the_command_of_a_report_repeats_the_evaluation(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "eval"
    assert main(["eval", str(run), "--num-tasks", "5", "--seed", "3", "--output", str(folder)]) == 0
    words = shlex.split(json.loads((folder / "summary.json").read_text())["command"])
    assert words[:3] == ["stepwell", "eval", str(run)]
    assert {"eval.num_tasks=5", "seed=3"} <= set(words)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["recipe.name=stepo"], "recipe.name: there is no recipe 'stepo'"),
        (["env.name=lake"], "there is no env 'lake'"),
        (["env.options.sise=4"], "env.options.sise is not an option of frozenlake"),
        (
            ["env.options.size=2", "env.options.hole_rate=0", "env.held_out_share=0.0001"],
            "frozenlake with these env.options has no held_out task",
        ),
        (["engine.max_length=64"], "the prompt has "),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    settings: list[str], problem: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), *settings]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {problem}"), err
    assert err.count("\n") == 1


def test_a_missing_model_directory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "no/such/model"]) == 2
    assert "model 'no/such/model' is neither a directory nor a built-in name" in capsys.readouterr().err


def test_a_checkpoint_cut_short_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["eval", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "model.safetensors" in err
