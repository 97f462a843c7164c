"""`stepwell eval --endpoint`: outside models, their folders, and the table beside trained ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.chat_server import ChatServer, chatting, refusal

from stepwell.cli.main import main
from stepwell.monitors.replays import load_replays

SMALL = ["env.options={size=3, max_turns=2}", "recipe.name=grpo", "sampling.max_tokens=8"]


@pytest.fixture(scope="module")
def running() -> Iterator[ChatServer]:
    with chatting() as server:
        yield server


@pytest.fixture
def server(running: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatServer:
    url = running.url
    running.__init__(url)  # type: ignore[misc]
    monkeypatch.chdir(tmp_path)
    return running


def asked(server: ChatServer, *more: str) -> list[str]:
    return ["eval", "--endpoint", server.url, "--model", "org/outside-1", "--num-tasks", "4", *more, *SMALL]


def test_an_outside_model_is_measured_and_everything_kept_in_a_folder(
    server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say = lambda body: {"content": "<answer>Down</answer><b>"}
    assert main(asked(server, "frozenlake")) == 0
    out = capsys.readouterr().out
    folder = Path("runs/eval-org-outside-1-frozenlake")
    assert out.startswith(
        "model      org/outside-1\nenv        frozenlake, 4 held-out tasks, 1 attempt each, "
    )
    assert f"report     {folder / 'report.html'}" in out and "format_share 0.000" in out
    page = (folder / "report.html").read_text()
    assert "Stepwell evaluation" in page and "org/outside-1 <span>on</span> frozenlake" in page
    assert "trained policy" not in page and "Learning curve" not in page
    assert f"--endpoint {server.url} --model org/outside-1 frozenlake" in page and "eval.num_tasks=4" in page
    replays = load_replays(folder / "replays.json")
    assert len(replays) == 4 and replays[0].frames[0].reply == "<answer>Down</answer><b>"
    assert replays[0].frames[0].actions == ["Down"] and replays[0].frames[0].image_png is not None
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text() == page
    assert main([*asked(server, "frozenlake"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert told["num_tasks"] == 4 and told["num_calls"] == len(server.bodies) / 2
    assert Path("runs/eval-org-outside-1-frozenlake-2/evaluation.json").exists()


def test_trained_and_outside_models_stand_in_one_table(
    server: ChatServer, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--num-tasks", "4", "agent.strategy=no_think", *SMALL]
    assert main(["eval", str(run), "--report", "--output", "ours", *settings]) == 0
    assert main([*asked(server, str(run), "agent.strategy=free_think"), "--output", "theirs"]) == 0
    capsys.readouterr()
    assert main(["eval", "--compare", "ours", "theirs"]) == 0
    table = capsys.readouterr().out
    for name, head in (("ours", "checkpoints/best"), ("theirs", "org/outside-1")):
        values = json.loads(Path(name, "evaluation.json").read_text())["values"]
        (line,) = [line for line in table.splitlines() if head in line]
        assert f"{values['success']:.3f}" in line and f"{values['reward']:.3f}" in line
        assert f"{values['low']:.3f} to {values['high']:.3f}" in line
    assert "frozenlake, 4 held-out tasks" in table and "format" in table and "tokens" in table
    assert 'note: strategy differs: "no_think", "free_think"' in table and table.count("note:") == 1
    assert main(["eval", "--compare", "theirs", "theirs/"]) == 0
    assert "org/outside-1 (theirs/)" in capsys.readouterr().out  # one model twice, told apart
    assert main(["eval", "--compare", "ours", "theirs", "--json"]) == 0
    assert [row["folder"] for row in json.loads(capsys.readouterr().out)["evaluations"]] == ["ours", "theirs"]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (["env.options.size=4"], "env.options.size is 3 in one and 4 in the other"),
        (["eval.num_tasks=3"], "their tasks differ (4 and 3, 3 shared)"),
        (["env.name=sokoban", "env.options={}"], "they are of frozenlake and of sokoban"),
    ],
)
def test_evaluations_of_other_tasks_are_not_compared(
    server: ChatServer, other: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*asked(server), "--output", "one"]) == 0
    words = [word for word in asked(server) if word not in ("--num-tasks", "4")]
    assert main([*words, "eval.num_tasks=4", *other, "--output", "two"]) == 0
    capsys.readouterr()
    assert main(["eval", "--compare", "one", "two"]) == 2
    assert problem in capsys.readouterr().err


def test_mistakes_on_the_command_line_are_one_line(
    server: ChatServer, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse = lambda body: refusal(401, "invalid api key")
    for argv, problem in (
        (["eval"], "name a run folder, a checkpoint or a model, or use --endpoint and --model"),
        (
            ["eval", str(run), "--model", "x"],
            "--model is only for outside models; add --endpoint URL",
        ),
        (["eval", "--endpoint", server.url], "--endpoint needs --model NAME"),
        (
            [*asked(server), "--concurrency", "0"],
            "max_concurrent: must be a whole number, at least 1",
        ),
        (asked(server, "--api-key-env", "HERE"), "org/outside-1 at http"),
        (["eval", "--compare", str(run)], f"{run} holds no evaluation"),
        (["eval", "--resume", str(run)], f"{run} holds no evaluation"),
    ):
        assert main(argv) == 2, argv
        err = capsys.readouterr().err
        assert err.startswith(f"error: {problem}") and err.count("\n") == 1, err
    assert not list(Path("runs").glob("*"))


def test_one_that_was_stopped_goes_on_with_its_own_settings(
    server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse = lambda body: refusal(400, "not now") if len(server.bodies) > 3 else None
    assert main([*asked(server), "--concurrency", "1", "--output", "one"]) == 2
    assert "1 of 4 tasks were finished, see one: continue with `stepwell eval" in capsys.readouterr().err
    server.refuse = lambda body: None
    assert main(["eval", "--compare", "one"]) == 2
    assert "continue it: stepwell eval --resume one" in capsys.readouterr().err
    assert main(["eval", "--resume", "one"]) == 0
    assert "frozenlake, 4 held-out tasks" in capsys.readouterr().out
    assert main(["eval", "--compare", "one"]) == 0
    assert main(["eval", "--resume", "one", "--num-tasks", "9"]) == 2


def test_a_folder_with_something_in_it_is_left_alone(
    server: ChatServer, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("words")
    for argv in (asked(server), ["eval", str(run)]):
        assert main([*argv, "--output", "mine"]) == 2
        assert "mine is not empty" in capsys.readouterr().err
    assert main(["eval", str(run), "--report", "engine.max_length=64"]) == 2
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]
    assert not list(Path("runs").glob("*")) and server.bodies == []


def test_ctrl_c_names_the_command_that_goes_on(
    server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(body: dict[str, Any]) -> dict[str, Any]:
        if len(server.bodies) == 6:  # the question before, and two turns of each episode
            os.kill(os.getpid(), signal.SIGINT)
        return {"content": "?"}

    server.say = say
    assert main([*asked(server), "--concurrency", "1", "--output", "one"]) == 130
    told = capsys.readouterr().err
    assert "interrupted. Finished episodes are stored; continue with: stepwell eval --resume one" in told
    assert json.loads(Path("one/evaluation.json").read_text())["num_done"] == 2
