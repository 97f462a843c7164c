"""Exported policies: what transformers opens, with the same logits, a card, and an upload that arrives."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import constants
from tests.policies.hub_server import serve_hub
from tests.runs.small import small_config
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepwell.cli.main import main
from stepwell.core import ConfigError, InfraError, ModelError
from stepwell.policies import CausalLMPolicy
from stepwell.runs.evaluation.evaluate import find_checkpoint
from stepwell.runs.export.policy import export_card, export_run
from stepwell.runs.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with adapters."""
    settings = ("policy.model=tiny-0.3m", "policy.lora={rank=4}", "recipe.name=grpo", "train.num_updates=1")
    return train(small_config(*settings, folder=tmp_path_factory.mktemp("runs")))


def test_an_exported_run_opens_in_transformers_with_the_same_logits(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "walker"
    assert main(["export", str(run), "--to", str(folder), "--license", "mit"]) == 0
    assert f"exported to {folder}" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "P _ G"}], tokenize=False, add_generation_prompt=True
    )
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    policy = CausalLMPolicy.from_pretrained(find_checkpoint(run), attention="replay")
    assert policy.adapters is not None
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, policy.model(ids).logits, atol=1e-4, rtol=1e-4)
    names = {file.name for file in folder.iterdir()}
    assert {"README.md", "model.safetensors", "tokenizer.json", "config.json"} <= names
    assert not names & {"adapter_config.json", "trainer.pt", "loop.json", "complete.json"}


def test_a_disk_that_is_full_is_told_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = tmp_path / "chats.jsonl"
    said = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    chats.write_text(json.dumps({"messages": said}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for argv in (["export", str(run)], ["sft", "tiny-0.3m", str(chats), "--max-updates", "1"]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # no file may be longer
        try:
            assert main([*argv, "--to", str(tmp_path / "model")]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        told = capsys.readouterr().err
        assert told.startswith(f"error: --to: cannot write {tmp_path / 'model'} (")
        assert "choose another directory" in told and not (tmp_path / "model").exists()


def test_the_card_says_what_was_trained_and_how_good_it_is(run: Path, tmp_path: Path) -> None:
    export_run(run, str(tmp_path / "walker"), licence="apache-2.0")
    _, front, body = (tmp_path / "walker" / "README.md").read_text().split("---\n", 2)
    told = yaml.safe_load(front)
    assert told["license"] == "apache-2.0" and told["library_name"] == "transformers"
    assert told["model-index"][0]["results"][0]["metrics"][0]["name"] == "held-out success"
    for words in (
        "| recipe | grpo |",
        "frozenlake",
        "held-out success before | 0.",
        "LoRA of rank 4, merged",
    ):
        assert words in body
    assert 'AutoTokenizer.from_pretrained("walker")' in body and "stepwell train train.toml" in body


def test_the_card_has_the_success_of_the_weights_that_it_describes(tmp_path: Path) -> None:
    ruined = ("recipe.name=grpo", "train.num_updates=1", "train.optimizer.learning_rate=0.1")
    run = train(small_config(*ruined, "eval.num_tasks=16", folder=tmp_path / "runs"))
    best, last = find_checkpoint(run), run / "checkpoints" / "update-000001"
    shown = []
    for checkpoint in (best, last):
        export_card(run, str(tmp_path / "card"), checkpoint=checkpoint.name)
        _, front, body = (tmp_path / "card" / "README.md").read_text().split("---\n", 2)
        shown.append(yaml.safe_load(front)["model-index"][0]["results"][0]["metrics"][0]["value"])
        assert f"| held-out success of this checkpoint | {shown[-1]:.2f} (" in body
    assert best.name == "best" and shown[0] > shown[1] == 0


def test_the_card_alone_has_the_learning_curve(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--to", str(tmp_path / "card"), "--card"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "card" / "README.md")
    assert {file.name for file in (tmp_path / "card").iterdir()} == {"README.md", "learning_curve.svg"}
    assert "![held-out success](learning_curve.svg)" in (tmp_path / "card" / "README.md").read_text()
    assert (tmp_path / "card" / "learning_curve.svg").read_text().startswith("<svg")
    with pytest.raises(ConfigError, match="leave --card out"):
        export_card(run, "hub:a/b")


def test_a_directory_in_use_and_an_unknown_checkpoint_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        export_run(run, str(tmp_path / "full"))
    with pytest.raises(ConfigError, match=r"has no 'update-9'.* It has: best"):
        export_run(run, str(tmp_path / "new"), checkpoint="update-9")
    with pytest.raises(ConfigError, match=r"cannot write .*full/file/new .*; choose another directory"):
        export_run(run, str(tmp_path / "full" / "file" / "new"))


def test_an_upload_arrives_whole(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with serve_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with pytest.raises(InfraError, match=r"refused acme/walker.*HF_TOKEN"):
            export_run(run, "hub:acme/walker")
        monkeypatch.setenv("HF_TOKEN", hub.token)
        assert export_run(run, "hub:acme/walker") == f"{hub.url}/acme/walker"
        sent = hub.uploaded["acme/walker"]
    export_run(run, str(tmp_path / "here"))
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= set(sent)
    assert sent["model.safetensors"] == (tmp_path / "here" / "model.safetensors").read_bytes()


def test_an_upload_offline_is_refused_with_another_way(run: Path) -> None:
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        export_run(run, "hub:acme/walker")
