"""The command line: instant help, one line per mistake, and exit codes that mean something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell.cli.main as cli
from stepwell.cli import recipes
from stepwell.cli.main import main
from stepwell.config.loading import dump_config, load_config
from stepwell.config.run import RunConfig
from stepwell.core import EngineError

COMMANDS = ["train", "eval", "play", "demo", "study", "report", "recipes", "envs", "init"]


def failed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a refused command line leaves on stderr."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: stepwell {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"\n    {command} " in capsys.readouterr().out


def test_help_may_be_typed_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help"], ["help", "eval"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(" ".join(["usage: stepwell", *words[1:]]))


def test_the_module_runs_like_the_script() -> None:
    done = subprocess.run([sys.executable, "-m", "stepwell", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "stepwell 0.2.0\n")


def test_settings_may_stand_before_and_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    problem = failed(capsys, "train", "frozenlake", "sede=1", "--dry-run", "trian.x=1")
    assert "sede: unknown key; did you mean 'seed'? (override)" in problem
    assert "trian: unknown key; did you mean 'train'? (override)" in problem
    with pytest.raises(SystemExit) as ended:
        main(["train", "frozenlake", "--dry-ran"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --dry-ran" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["demo", "seed=1"])
    assert "unrecognized arguments: seed=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (
            ["train", "frozenlake", "train.group_sise=1"],
            "preset frozenlake: train.group_sise: unknown key; did you mean 'train.group_size'? (override)",
        ),
        (["train", "frozenlake", "seed=x"], "preset frozenlake: seed: must be a whole number, at least 0"),
        (["train", "missing.toml"], "config 'missing.toml' is neither a file nor a preset"),
        (
            ["train", "frozenlak"],
            "config 'frozenlak' is neither a file nor a preset; did you mean 'frozenlake'?",
        ),
        (["train"], "give a TOML file or a preset ("),
        (["train", "seed=1"], "give a TOML file or a preset ("),
        (["train", "sokoban", "frozenlake"], "'sokoban' and 'frozenlake' both name a configuration"),
        (["train", "--resume", "nowhere"], "'nowhere' is not a run folder: it has no config.toml."),
        (
            ["eval", "tiny-1m", "--num-tasks", "0"],
            "eval.num_tasks: must be a whole number, at least 1, got 0",
        ),
        (["report", "nowhere"], "'nowhere' is not a run folder"),
        (["study", "none.toml"], "study file 'none.toml' does not exist"),
        (["demo", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["plan", "frozenlake", "--cores", "0"], "--cores must be above 0, got 0"),
        (["recipes", "stepo"], "there is no recipe 'stepo'; did you mean 'steppo'?"),
        (["envs", "show", "frozen_lake"], "there is no env 'frozen_lake'; did you mean 'frozenlake'?"),
        (
            ["envs", "show", "frozenlake", "--set", "sise=5"],
            "env.options.sise is not an option of frozenlake; did",
        ),
        (["envs", "show", "frozenlake", "--set", "size"], "'size' is not a setting; write key=value"),
        (["play", "frozenlake", "--run", "nowhere"], "'nowhere' is not a run folder"),
        (["play", "env.name=frozenlak"], "there is no env 'frozenlak'; did you mean 'frozenlake'?"),
        (
            ["play", "frozenlake", "--model", "no/where"],
            "policy.model: there is no folder no/where here",
        ),
        (["play", "env.options.size=1"], "env.options.size of frozenlake"),
        (["init", "env", "Two Words"], "env name 'Two Words' must be lower-case letters"),
        (["init", "env", "frozenlake"], "env name 'frozenlake' is taken"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    argv: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    message = failed(capsys, *argv)
    assert message.startswith(problem), message
    assert "\n" not in message


def test_runs_beside_a_missing_one_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "lake-0"
    run.mkdir()
    (run / "config.toml").write_text(dump_config(RunConfig()))
    assert failed(capsys, "report", str(tmp_path / "lake-1")).endswith(f"Runs there: {run}")


def test_a_resumed_run_takes_no_other_file_and_no_other_environment(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = failed(capsys, "train", "--resume", str(run), "sokoban")
    assert problem == "--resume continues with the run's own settings; leave out 'sokoban'"
    (run / "run.json").write_text(
        json.dumps({"id": "", "name": "lake", "settings": load_config(run).model_dump(mode="json")})
    )
    problem = failed(capsys, "train", "--resume", str(run), "env.name=sokoban", "--dry-run")
    assert 'env.name "frozenlake" -> "sokoban" is refused, because earlier results' in problem


def test_debug_shows_where_an_error_arose() -> None:
    argv = [sys.executable, "-m", "stepwell", "envs", "show", "nothing"]
    plain = subprocess.run(argv, capture_output=True, text=True)
    debug = subprocess.run([*argv, "--debug"], capture_output=True, text=True)
    assert (plain.returncode, "Traceback" in plain.stderr) == (2, False)
    assert debug.returncode != 0
    assert "Traceback" in debug.stderr


def test_an_error_of_the_system_is_told_in_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, words in (
        (EngineError("the engine is gone"), "the engine is gone"),
        (OSError(28, "No space left on device", "runs/x"), "[Errno 28] No space left on device: 'runs/x'"),
    ):

        def fails(args: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(recipes, "run", fails)
        assert failed(capsys, "recipes") == words


def test_a_terminal_without_unicode_gets_what_it_can_show() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    argv = [sys.executable, "-m", "stepwell", "presets"]
    done = subprocess.run(argv, capture_output=True, env=env, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"") and b"frozenlake-easy" in done.stdout


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    command = f"{sys.executable} -m stepwell envs list --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_interrupt_is_exit_code_130_and_no_traceback(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "stepwell", "play", "frozenlake"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert started.stdout is not None
    assert started.stdout.readline().startswith("actions: ")
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=20)
    assert started.returncode == 130
    assert err.strip() == "interrupted."


def test_an_interrupted_training_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.cli.train import _describe_resume

    parser = cli.build_parser()
    args = parser.parse_args(["train", "frozenlake"])
    assert _describe_resume(args) == "Nothing was trained yet."
    monkeypatch.setenv("RANK", "1")  # it has no folder of its own, and other ranks may have trained
    assert _describe_resume(args) == "This was a rank; the run is the process with RANK=0."
    monkeypatch.setenv("RANK", "0")
    args.folder = tmp_path
    for age, name in ((100, "older"), (0, "newer")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "config.toml"
        file.write_text("")
        os.utime(file, (file.stat().st_mtime - age,) * 2)
    assert _describe_resume(args) == f"Continue with: stepwell train --resume {tmp_path / 'newer'}"
    resumed = parser.parse_args(["train", "--resume", "runs/a"])
    assert _describe_resume(resumed) == "Continue with: stepwell train --resume runs/a"


def test_the_last_line_of_a_run_has_its_figures(tmp_path: Path) -> None:
    from stepwell.cli.summary import describe_run

    assert describe_run(tmp_path) == f"run {tmp_path}"
    fixed = {"env_steps": 9, "wall_s": 1.0, "seed": 0, "recipe": "steppo", "env": "frozenlake"}
    figures = {"success_before": 0.3125, "success_after": 0.9218, **fixed}
    (tmp_path / "summary.json").write_text(json.dumps(figures))
    (tmp_path / "report.html").write_text("<html>")
    assert describe_run(tmp_path) == f"held-out success 0.31 -> 0.92  report {tmp_path / 'report.html'}"
    figures |= {"success_before": 0.5, "success_after": None, "status": "interrupted", "num_updates": 7}
    (tmp_path / "summary.json").write_text(json.dumps(figures))
    assert describe_run(tmp_path).startswith(
        "held-out success 0.50 before training, not measured after update 7, the last one  "
    )


def test_an_agent_inside_a_run_has_the_settings_of_that_run(tmp_path: Path) -> None:
    from stepwell.cli.eval import find_agent_settings

    checkpoint = tmp_path / "run" / "checkpoints" / "best"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "config.toml").write_text("seed = 1\n")
    assert find_agent_settings(str(checkpoint)) == tmp_path / "run"
    assert find_agent_settings(str(tmp_path / "run")) == tmp_path / "run"
    assert find_agent_settings("tiny-1m") is None


@pytest.mark.parametrize("words", [[], ["envs"], ["init"], ["serve"], ["pool"], ["orm"], ["cluster"]])
def test_a_command_line_without_its_command_shows_which_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"usage: {' '.join(['stepwell', *words])}") and "are required" not in shown
    assert "options:" in shown and shown.count("\n    ") >= 1  # every choice with its summary


def test_a_run_that_is_not_there_is_not_sought_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = failed(capsys, "eval", "runs/mine")
    assert told.startswith("there is no run folder 'runs/mine', and no built-in model")
    (tmp_path / "runs" / "yours").mkdir(parents=True)
    (tmp_path / "runs" / "yours" / "config.toml").write_text("")
    told = failed(capsys, "eval", "runs/mine")
    assert told == "there is no run folder 'runs/mine'. Runs there: runs/yours"
