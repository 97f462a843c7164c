"""Training on chats: only the assistant's turns, tools included, and errors by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runs.small import notes, small_config

from stepwell.cli.main import main
from stepwell.core import ConfigError
from stepwell.monitors.jsonl import read_entries
from stepwell.policies import resolve_model
from stepwell.rendering import Renderer, load_tokenizer
from stepwell.runs.build.components import Components
from stepwell.runs.build.warm_starts import make_cache_key
from stepwell.runs.run import train
from stepwell.runs.sft.chats import read_chats

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


LAKE = ("user", "P _ G"), ("assistant", "<answer>Right</answer>")
FROM_CHATS = (
    "policy.model=tiny-0.3m",
    "warm_start.batch_size=2",
    "warm_start.epochs=12",
    "warm_start.optimizer.learning_rate=5e-3",
    "train.num_updates=1",
)


def test_a_run_learns_the_chats_before_it_plays_and_its_critic_learns_nothing_from_them(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "chats.jsonl", *[chat(*LAKE)] * 4)
    config = small_config(*FROM_CHATS, f"warm_start.chats={source}", "eval.num_tasks=0", folder=tmp_path)
    folder = train(config)
    entries = list(read_entries(folder / "metrics.jsonl"))
    (warm,) = [entry for entry in entries if entry.kind == "warm_start"][-1:]
    assert (warm.values["step"], warm.values["num_steps"]) == (24, 24)
    assert warm.values["loss/policy"] < 1 and "loss/value" not in warm.values
    assert [entry.kind for entry in entries if entry.kind != "event"][-1] == "update"
    assert any("4 chats of" in note for note in notes(folder))


def test_a_kept_warm_start_depends_on_what_the_chats_say_not_on_their_files_name(tmp_path: Path) -> None:
    def key(source: Path) -> str:
        return make_cache_key(Components(small_config(*FROM_CHATS, f"warm_start.chats={source}")))

    one = write(tmp_path / "one.jsonl", chat(*LAKE))
    same = write(tmp_path / "same.jsonl", chat(*LAKE))
    other = write(tmp_path / "other.jsonl", chat(("user", "P _ G"), ("assistant", "<answer>Up</answer>")))
    assert key(one) == key(same) != key(other)


def test_the_dry_run_tells_the_chats_and_refuses_a_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "chats.jsonl", *[chat(*LAKE)] * 4)
    quick = ["train", "frozenlake", "warm_start.num_demos=0", "--dry-run"]
    assert main([*quick, f"warm_start.chats={source}"]) == 0
    assert "4 chats of chats.jsonl in batches of" in capsys.readouterr().out
    assert main([*quick, "warm_start.chats=nowhere.jsonl"]) == 2
    assert "warm_start.chats: cannot read nowhere.jsonl" in capsys.readouterr().err
