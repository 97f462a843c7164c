"""Playing by hand: lines and keys become turns, and the agent takes over where one likes."""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.tool_envs import Notes

from stepwell.cli.keys import edit_line
from stepwell.cli.main import main
from stepwell.cli.play import COMMANDS, read_actions
from stepwell.cli.terminal_image import format_ansi_image
from stepwell.config.loading import load_config
from stepwell.core import ActionSpace, InputError, Split, ToolCall
from stepwell.envs import draw_tasks
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.evaluate import find_checkpoint
from stepwell.runs.play.episode import PlaySession, open_live_agent

MOVES = ActionSpace(("Up", "Down", "Left", "Right"), max_per_turn=3)
UP, LEFT = "\x1b[A", "\x1b[D"


def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str, *argv: str) -> str:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["play", *argv]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "actions"),
    [
        ("Up", ["Up"]),
        (" up , LEFT\n", ["Up", "Left"]),
        ("u,d,r", ["Up", "Down", "Right"]),
        ("le,", ["Left"]),
    ],
)
def test_typed_names_may_be_short_and_in_any_case(line: str, actions: list[str]) -> None:
    assert read_actions(MOVES, line) == actions


@pytest.mark.parametrize("line", ["jump", "Up, jump", "Up Left", "u,u,u,u", ","])
def test_what_is_no_turn_is_refused(line: str) -> None:
    with pytest.raises(InputError):
        read_actions(MOVES, line)


def test_calls_are_typed_as_json_or_as_a_name_and_a_text() -> None:
    tools = Notes().description.actions
    look = ToolCall("look", {"name": "a"}).text
    assert read_actions(tools, f"look a && {look}") == [look, look]
    assert read_actions(tools, "answer  x y ") == [ToolCall("answer", {"word": "x y"}).text]
    for line, problem in [
        ("look", "look needs the argument 'name'"),
        ("dig a", "there is no tool 'dig'"),
        ('{"name": 1}', 'needs a "name"'),
        ("look a && look b && look c && look d", "4 calls, at most 3"),
    ]:
        with pytest.raises(InputError, match=problem):
            read_actions(tools, line)


def test_a_beginning_that_fits_two_names_is_refused() -> None:
    with pytest.raises(InputError, match="'push' is not an action"):
        read_actions(ActionSpace(("push_left", "push_right")), "push")
    assert read_actions(ActionSpace(("push", "push_right")), "push") == ["push"]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ([UP, LEFT, "\r"], "Up,Left"),
        ([UP, "\x7f", "\x7f", "\r"], ""),
        (["a"], "a"),
        (["q"], "q"),
        (["d", "o", "w", "n", "\n"], "down"),
        ([UP, ",", "a", "\r"], "Up,a"),
        (["\x1b[H", "\x00", "\r"], ""),
        (["x", "\x04"], None),
        ([], None),
    ],
)
def test_keys_become_a_line(keys: list[str], line: str | None) -> None:
    assert edit_line(iter(keys), MOVES, COMMANDS, lambda line: None) == line


def test_an_arrow_is_a_whole_turn_where_a_turn_is_one_action() -> None:
    shown: list[str] = []
    assert edit_line(iter([UP, LEFT]), ActionSpace(("Up", "Left")), COMMANDS, shown.append) == "Up"
    assert edit_line(iter([UP, "h", "\r"]), ActionSpace(("hold",)), COMMANDS, shown.append) == "h"


@given(st.lists(st.text(max_size=4)))
def test_no_key_breaks_the_editor(keys: list[str]) -> None:
    line = edit_line(iter(keys), MOVES, COMMANDS, lambda line: None)
    assert line is None or line.isprintable()


def test_an_image_is_two_pixels_per_character() -> None:
    image = np.zeros((2, 1, 3), dtype=np.uint8)
    image[0, 0], image[1, 0] = (255, 0, 0), (0, 0, 9)
    assert format_ansi_image(image) == "\x1b[38;2;255;0;0;48;2;0;0;9m▀\x1b[0m"
    lines = format_ansi_image(np.zeros((64, 128, 3), dtype=np.uint8), width=32).splitlines()
    assert (len(lines), lines[0].count("▀")) == (8, 32)


def test_a_hinted_way_leads_to_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = play(monkeypatch, capsys, "h\nq\n", "frozenlake", "--seed", "3")
    way = hint.split("shortest way: ")[1].split("\n")[0].split(", ")
    turns = "".join(",".join(way[at : at + 3]) + "\n" for at in range(0, len(way), 3))
    out = play(monkeypatch, capsys, turns + "Up\nq\n", "frozenlake", "--seed", "3")
    assert f"success after {-(-len(way) // 3)} turns, reward {10 - 0.1 * (len(way) - 1):+.2f}" in out
    assert "outcome +1.00" in out
    assert out.endswith("the episode is over; start another one\n")


def test_mistakes_at_the_keyboard_end_no_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = play(monkeypatch, capsys, "jump\na\n\n?\nn\n", "frozenlake")
    assert "'jump' is not an action; known: Up, Down, Left, Right" in out
    assert "there is no agent here; give one with --run RUN or --model MODEL" in out
    assert "commands: a agent acts, h hint, n next task, q end, ? this help" in out
    first, second = (line for line in out.splitlines() if line.startswith("task "))
    assert first != second
    assert "turn 1" not in out


def test_the_first_screen_says_what_may_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = play(monkeypatch, capsys, "/q\n", "web-tiny")
    assert 'do(action="Click", element="12")' in out.partition("task ")[0]
    assert "/h hint" in out and "/q end" in out


def test_an_image_that_is_to_be_drawn_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = play(monkeypatch, capsys, "/q\n", "svg-visual")
    assert "\x1b[38;2;" in out.partition("draws this icon")[2]


def test_the_end_of_the_tasks_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["env.options.size=2", "env.options.hole_rate=0", "env.held_out_share=0.99"]
    out = play(monkeypatch, capsys, "n\n" * 60, *small)
    assert 1 <= out.count(" turns\n") <= 12
    assert out.endswith("there is no further task\n" * 40)
    empty = [*small[:2], "env.held_out_share=0.0001"]
    assert main(["play", *empty]) == 2
    assert "frozenlake has no task in split held_out" in capsys.readouterr().err


def test_the_agent_of_a_run_acts_and_its_value_is_shown(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = play(monkeypatch, capsys, "a\nUp\na\nq\n", "--run", str(run))
    assert out.count("agent: ") == 2
    assert out.count("value ") >= 2
    assert "turn 1: nothing   task +0.00  format +0.00" in out  # an untrained model says nothing readable
    assert (
        "turn 2: Up   task -0.10  format +0.50  outcome +0.00  grounding +0.50  world_modeling +0.50" in out
    )


def test_a_persons_turn_reads_to_the_agent_like_its_own(run: Path) -> None:
    config = load_config(run, ["env.options.max_turns=6"])
    env = config.env
    (task,) = draw_tasks(env.name, env.options, Split.HELD_OUT, 1, 0, env.held_out_share)
    with PlaySession(config, open_live_agent(find_checkpoint(run), config)) as session:
        session.start(task)
        played = session.act([session.env.oracle()[0]])
        assert played.reply.is_strict
        assert played.parts["grounding"] == played.parts["world_modeling"] == 0.5
        talk = session.live_agent._conversation  # the prompt is what is tested: nothing public shows it
        roles = [message.role for message in talk.messages]
        assert roles == ["system", "user", "assistant", "user"]
        assert talk.messages[2].text == played.text
        assert talk.messages[3].text == session.agent.next_prompt(session.observation)
        assert talk.num_restarts == 0


@pytest.mark.parametrize("context", ["dialogue", "observation", "window"])
def test_who_plays_with_tools_sees_the_prompts_of_training(run: Path, context: str) -> None:
    wish = (
        "env.name=tests.envs.tool_envs:Notes",
        "env.options={}",
        f"agent.context={context}",
        "agent.context_turns=1",
    )
    config = load_config(run, [*wish, "agent.strategy=no_think", "recipe.name=grpo"])
    (shown,) = Components(config).play_demonstrations(1, 0.0, 0)
    with PlaySession(config, open_live_agent(find_checkpoint(run), config)) as session:
        session.start(shown.task)
        for step in shown.steps:
            ids = session.live_agent._conversation.state.prompt_ids  # type: ignore[union-attr]
            assert ids.tolist() == step.state.prompt_ids.tolist()  # type: ignore[union-attr]
            played = session.act([str(action) for action in step.info["actions"]])  # type: ignore[union-attr]
        assert played.success


def test_a_run_without_checkpoints_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "config.toml", tmp_path)
    assert main(["play", "--run", str(tmp_path)]) == 2
    assert "has no whole checkpoint yet" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    weights = copy / "checkpoints" / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["play", "--run", str(copy)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert str(copy) in err
    assert "Traceback" not in err


def test_arrow_keys_play_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-m", "stepwell", "play", "frozenlake", "--text"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        os.write(ours, b"\x1b[A\x1b[D\nq\n")
        out, _ = started.communicate(timeout=200)
    finally:
        started.kill()
        os.close(ours)
        os.close(theirs)
    assert started.returncode == 0
    first, second = out.splitlines()[:2]
    assert first.startswith("actions: arrow keys, ") and "Up" in first
    assert second == "commands: a agent acts, h hint, n next task, q end, ? this help"
    assert "> Up,Left\n" in out
    assert "turn 1: Up" in out
