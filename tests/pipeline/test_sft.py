"""Training on chats: only the assistant's turns, tools included, and errors by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.main import main
from stepwell.core import ConfigError
from stepwell.pipeline.chats import read_chats
from stepwell.policies import resolve_model
from stepwell.rendering import Renderer, load_tokenizer

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def chat(*turns: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns], **more}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(resolve_model("tiny-0.3m")))


def write(path: Path, *chats: Any) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in chats), encoding="utf-8")
    return path


def test_every_turn_of_the_assistant_is_a_step_that_ends_its_turn(renderer: Renderer, tmp_path: Path) -> None:
    told = chat(
        ("system", "Be brief."), ("user", "P _ G"), ("assistant", "Right\u2028now"), ("user", "_ P G")
    )
    told["messages"].append({"role": "assistant", "content": "Right"})
    (found,) = read_chats(str(write(tmp_path / "a.jsonl", told)), renderer, "sft")
    first, second = found.steps
    assert [step.action.text for step in found.steps] == ["Right\u2028now", "Right"]
    for step in found.steps:
        assert int(step.action.action_ids[-1]) in renderer.end_ids
    start = [*first.state.prompt_ids, *first.action.action_ids]
    assert second.state.prompt_ids[: len(start)].tolist() == [int(token) for token in start]


def test_tool_calls_are_learnt_in_the_templates_form(renderer: Renderer, tmp_path: Path) -> None:
    told = chat(("user", "2 + 3?"), tools=[TOOL])
    told["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is 5."},
    ]
    (found,) = read_chats(str(write(tmp_path / "a.jsonl", told)), renderer, "sft")
    assert "<tool_call>" in found.steps[0].action.text and '"add"' in found.steps[0].action.text
    assert found.steps[1].action.text == "It is 5."


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "hello"}, 'there is no list "messages"'),
        (chat(("user", "hi")), "no message has the role assistant"),
        (chat(("assistant", "hi")), "the first message is the assistant's"),
        (chat(("human", "hi")), "message 1 needs a role"),
        (chat(("user", "hi"), ("assistant", "")), "message 2 is empty"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1: content must be text"),
    ],
)
def test_a_bad_chat_is_refused_with_its_line(
    row: Any, problem: str, renderer: Renderer, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", chat(("user", "a"), ("assistant", "b")), row)
    with pytest.raises(ConfigError, match=rf"sft: .*a\.jsonl, line 2: .*{problem}"):
        read_chats(str(path), renderer, "sft")


def test_a_model_learns_the_chats_and_is_written_for_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path / "a.jsonl", *[chat(("user", f"P {n} G"), ("assistant", "Right")) for n in range(8)]
    )
    argv = ["sft", "tiny-0.3m", str(path), "--to", str(tmp_path / "warm"), "--learning-rate", "5e-3"]
    assert main([*argv, "--epochs", "20"]) == 0
    out = capsys.readouterr().out
    first, *_, last = [float(line.split("loss ")[1]) for line in out.split("\n") if "loss " in line]
    assert first > 5 and last < 0.5
    assert resolve_model(tmp_path / "warm") == tmp_path / "warm"
    assert main(argv) == 2
    assert "exists and is not empty" in capsys.readouterr().err
