"""Tiny models: their sizes, their files, and names resolved to directories, whole or refused."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepwell.core.errors import ModelError
from stepwell.policies.model_cache import find_damage, get_cached_model
from stepwell.policies.model_resolver import KNOWN_MODELS, TINY_NAMES, resolve_model
from stepwell.policies.tiny_models import TINY_SIZES, build_tiny, create_tiny
from stepwell.policies.vlm.tiny import TINY_VLM_SIZES


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.mark.parametrize(
    ("name", "count"), [("tiny-0.3m", 301_664), ("tiny-1m", 1_017_216), ("tiny-5m", 4_984_448)]
)
def test_a_tiny_model_has_the_documented_size(name: str, count: int) -> None:
    model, tokenizer = build_tiny(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.config.vocab_size == len(tokenizer) == 1024
    assert model.config.max_position_embeddings == 4096
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build_tiny("tiny-0.3m", seed=3)[0].state_dict()
    state = torch.get_rng_state()
    again = build_tiny("tiny-0.3m", seed=3)[0].state_dict()
    other = build_tiny("tiny-0.3m", seed=4)[0].state_dict()
    assert torch.equal(torch.get_rng_state(), state), "building must leave the global random state alone"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_fresh_model_is_close_to_indifferent() -> None:
    model, tokenizer = build_tiny("tiny-0.3m")
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode("P _ O G")])).logits
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    assert entropies.min() > 0.99 * torch.tensor(1024.0).log()


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    one, two = create_tiny("tiny-0.3m", tmp_path / "one", 5), create_tiny("tiny-0.3m", tmp_path / "two", 5)
    names = sorted(file.name for file in one.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    assert names == sorted(file.name for file in two.iterdir())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_transformers_opens_what_was_written_and_gives_the_same_logits(tmp_path: Path) -> None:
    create_tiny("tiny-0.3m", tmp_path, seed=1)
    built, tokenizer = build_tiny("tiny-0.3m", seed=1)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path).encode("P _ O <think>Up</think>")
    assert ids == tokenizer.encode("P _ O <think>Up</think>")
    with torch.no_grad():
        assert torch.equal(opened(torch.tensor([ids])).logits, built(torch.tensor([ids])).logits)
    assert opened.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_tiny_model_learns_to_read_a_board() -> None:
    model, tokenizer = build_tiny("tiny-0.3m")
    rows = [(f"{'_' * i}P{'_' * (3 - i)}", str(i)) for i in range(4)]
    ids = torch.tensor([tokenizer.encode(f"{board}\n{answer}") for board, answer in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(40):
        optimizer.zero_grad()
        logits = model(ids[:, :-1]).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, ids[:, -1]).backward()
        optimizer.step()
    assert model(ids[:, :-1]).logits[:, -1].argmax(-1).tolist() == ids[:, -1].tolist()


def test_known_names_are_the_sizes_and_smollm2() -> None:
    assert tuple(TINY_SIZES) == TINY_NAMES
    assert (*TINY_SIZES, *TINY_VLM_SIZES, "smollm2-135m", "smollm2-vlm") == KNOWN_MODELS


def test_a_tiny_name_is_made_once_and_reused(cache: Path) -> None:
    made = resolve_model("tiny-0.3m", seed=2)
    stamp = (made / "model.safetensors").stat().st_mtime_ns
    assert made.parent == cache
    assert resolve_model("tiny-0.3m", seed=2) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == stamp
    assert resolve_model("tiny-0.3m", seed=3) != made
    assert [path.name for path in cache.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_cache_is_noticed_and_made_again(cache: Path, harm: str) -> None:
    made = resolve_model("tiny-0.3m")
    weights = made / "model.safetensors"
    whole = weights.read_bytes()
    if harm == "flip":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif harm == "cut":
        weights.write_bytes(whole[:1000])
    elif harm == "remove":
        weights.unlink()
    else:
        (made / "stepwell.json").write_text('{"files": 3}')
    assert find_damage(made) is not None
    with pytest.warns(UserWarning, match="is damaged .* building it again"):
        assert resolve_model("tiny-0.3m") == made
    assert weights.read_bytes() == whole
    assert find_damage(made) is None


def test_files_are_hashed_again_only_when_they_changed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = resolve_model("tiny-0.3m")
    weights, now = made / "model.safetensors", time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 2 * 10**9)
    assert find_damage(made) is None
    hashed: list[str] = []
    monkeypatch.setattr(hashlib, "file_digest", _note_names(hashed, hashlib.file_digest))
    assert find_damage(made) is None and hashed == []
    stamp, whole = weights.stat(), weights.read_bytes()
    while weights.stat().st_ctime_ns == stamp.st_ctime_ns:  # a clock tick lasts up to 10 ms
        weights.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        os.utime(weights, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the time of change cannot be set
    assert find_damage(made) == "model.safetensors has changed since it was written"
    assert hashed == [str(weights)]


def _note_names(names: list[str], hash_handle: Callable[..., Any]) -> Callable[..., Any]:
    def hash_and_note(handle: Any, kind: str) -> Any:
        names.append(handle.name)
        return hash_handle(handle, kind)

    return hash_and_note


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def half_way(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        get_cached_model("thing", half_way, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".thing.lock"]


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left_over = tmp_path / ".thing.partial-dead"
    left_over.mkdir()
    get_cached_model("thing", _count_a_build, tmp_path)
    assert not left_over.exists()
    assert (tmp_path / "thing" / "config.json").read_text() == "{}"


def _count_a_build(folder: Path) -> None:
    with open(folder.parent / "builds", "a") as handle:
        handle.write("x")
    (folder / "config.json").write_text("{}")


def _resolve_in_child(root: Path) -> None:
    get_cached_model("thing", _count_a_build, root)


def test_two_processes_build_a_model_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_resolve_in_child, args=(tmp_path,)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0] * 4
    assert (tmp_path / "builds").read_text() == "x"


def test_an_unwritable_cache_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set STEPWELL_CACHE elsewhere"):
        resolve_model("tiny-0.3m")


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    names = "tiny-0.3m, tiny-1m, tiny-5m, tiny-vlm-0.5m, tiny-vlm-1.5m, smollm2-135m"
    with pytest.raises(ModelError, match=rf"did you mean 'smollm2-135m'\?.*{names}"):
        resolve_model("SmolLM2-135")
    with pytest.raises(ModelError, match=r"neither a directory nor a built-in name\. Built-in models"):
        resolve_model("/somewhere/else/entirely")
    with pytest.raises(ModelError, match=r"there are tiny-0\.3m"):
        build_tiny("tiny-9m")


def test_a_directory_is_its_own_answer(tmp_path: Path) -> None:
    create_tiny("tiny-0.3m", tmp_path)
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tiny("tiny-0.3m", tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, r"has no config\.json; give a directory written by save_pretrained"),
        ("config.json", b'{"model_type"', r"config\.json cannot be read"),
        ("config.json", b"[]", "does not hold a JSON object"),
        ("config.json", b"{}", "names no model_type"),
        ("model.safetensors", None, r"has no model\.safetensors"),
        ("model.safetensors", b"", "is damaged"),
        ("model.safetensors", b"\xff" * 16, "header is truncated"),
        ("model.safetensors", -1, r"truncated or overwritten; copy or save"),
        ("model.safetensors.index.json", b'{"weight_map": {}}', "lists no weights"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "model-1.safetensors"}}',
            "is missing; copy or save",
        ),
    ],
)
def test_a_damaged_directory_is_refused_with_the_fix(
    whole_model: Path, tmp_path: Path, file: str, content: bytes | int | None, message: str
) -> None:
    broken = shutil.copytree(whole_model, tmp_path / "broken")
    if content is None:
        (broken / file).unlink()
    elif isinstance(content, int):
        (broken / file).write_bytes((broken / file).read_bytes()[:content])
    else:
        (broken / file).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        resolve_model(broken)


def test_an_adapter_and_a_file_are_told_apart(whole_model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    shutil.copy(whole_model / "config.json", adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({}))
    with pytest.raises(ModelError, match="LoRA adapter: name its base model"):
        resolve_model(adapter)
    with pytest.raises(ModelError, match=r"is a file; give the directory"):
        resolve_model(whole_model / "config.json")
