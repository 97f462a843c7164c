"""Weights by version: exact fingerprints, all-or-nothing loading, spans of versions."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.engines.models import generate_alone, prompts_of, small_model

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import WeightsError
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.core import EngineCore
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.runner_factory import build_runner
from stepwell.engines.weights import check_weights, copy_weights, fingerprint_of

PROMPT = prompts_of([10], seed=2)[0]


def greedy(engine: EmbeddedEngine, num_tokens: int = 8) -> list[int]:
    request = Request(TokenState(PROMPT), SamplingParams(max_tokens=num_tokens, temperature=0.0))
    return engine.generate_blocking([request])[0].action.action_ids.tolist()


def test_a_fingerprint_sees_every_bit_name_shape_and_place() -> None:
    base = {"a": torch.arange(21.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    changed = {name: tensor.clone() for name, tensor in base.items()}
    changed["a"][20] = torch.nextafter(changed["a"][20], torch.tensor(99.0))
    swapped = {**base, "a": base["a"].clone()}
    swapped["a"][[3, 4]] = swapped["a"][[4, 3]]
    others = [
        changed,
        swapped,
        {"c": base["a"], "b": base["b"]},
        {**base, "a": base["a"].view(3, 7)},
        {**base, "b": base["b"].float()},
        {"a": base["a"]},
        {**base, "a": torch.cat([base["a"], torch.zeros(1)])},
    ]
    prints = [fingerprint_of(x) for x in [base, *others]]
    assert len(set(prints)) == len(prints)
    assert fingerprint_of({name: base[name].clone() for name in ("b", "a")}) == prints[0]


def test_a_fingerprint_does_not_depend_on_memory_layout() -> None:
    whole = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    odd = torch.cat([torch.zeros(1), whole.flatten()])[1:].view(7, 11)  # not aligned to eight bytes
    assert (
        fingerprint_of({"a": whole})
        == fingerprint_of({"a": odd})
        == fingerprint_of({"a": whole.t().contiguous().t()})
    )


def test_long_tensors_are_summed_in_chunks_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = {"a": torch.randn(1001, generator=torch.Generator().manual_seed(0))}
    whole = fingerprint_of(tensor)
    monkeypatch.setattr("stepwell.engines.weights._CPU_CHUNK", 64)
    assert fingerprint_of(tensor) == whole


def test_a_cast_fingerprint_is_that_of_the_cast_weights() -> None:
    state = small_model("llama").state_dict()
    cast = {name: tensor.bfloat16() for name, tensor in state.items()}
    assert fingerprint_of(state, torch.bfloat16) == fingerprint_of(cast) != fingerprint_of(state)


def test_a_tied_head_counts_once_whether_it_is_listed_or_not() -> None:
    state = dict(small_model("llama-tied").state_dict())
    without = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    assert len(without) == len(state) - 1
    assert fingerprint_of(state) == fingerprint_of(without)
    untied = small_model("llama").state_dict()
    assert fingerprint_of(untied) != fingerprint_of(
        {**untied, "lm_head.weight": untied["lm_head.weight"] + 1}
    )


@pytest.mark.parametrize("style", ["llama", "llama-tied", "qwen3", "gemma2"])
def test_loaded_weights_are_the_ones_that_sample(style: str, tmp_path: Path) -> None:
    old, new = small_model(style, torch.float64), small_model(style, torch.float64, seed=1)
    with EmbeddedEngine(old) as engine:
        assert greedy(engine) == generate_alone(old, PROMPT, 8)
        assert engine.fingerprint() == fingerprint_of(old.state_dict())
        engine.load_weights(3, new.state_dict(), fingerprint=fingerprint_of(new.state_dict()))
        assert engine.version == 3 and engine.fingerprint() == fingerprint_of(new.state_dict())
        assert greedy(engine) == generate_alone(new, PROMPT, 8) != generate_alone(old, PROMPT, 8)
        old.save_pretrained(tmp_path)
        engine.load_weights(4, tmp_path)
        assert greedy(engine) == generate_alone(old, PROMPT, 8)


def test_loading_reads_a_directory_of_several_files(tmp_path: Path) -> None:
    new = small_model("llama", seed=1)
    new.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with EmbeddedEngine(small_model("llama")) as engine:
        engine.load_weights(1, tmp_path)
        assert engine.fingerprint() == fingerprint_of(new.state_dict())
        next(tmp_path.glob("*-00002-*.safetensors")).unlink()
        with pytest.raises(WeightsError, match=r"00002.* does not exist"):
            engine.load_weights(2, tmp_path)


def test_the_engine_trains_nothing_and_touches_nothing_of_the_model_it_copied() -> None:
    model = small_model("llama")
    before = fingerprint_of(model.state_dict())
    with EmbeddedEngine(model) as engine:
        engine.load_weights(1, small_model("llama", seed=1).state_dict())
    assert fingerprint_of(model.state_dict()) == before
    assert all(p.requires_grad for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"


def damaged(name: str) -> dict[str, torch.Tensor]:
    state = {k: v.clone() for k, v in small_model("llama", seed=1).state_dict().items()}
    key = "model.layers.1.mlp.up_proj.weight"
    if name == "missing":
        del state[key]
    elif name == "unexpected":
        state["model.layers.7.mlp.up_proj.weight"] = state[key]
    elif name == "shape":
        state[key] = state[key].t().contiguous()
    elif name == "dtype":
        state[key] = state[key].to(torch.int32)
    elif name == "nan":
        state[key][3, 4] = float("nan")
    else:
        state[key][3, 4] = float("inf")
    return state


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"1 names are missing \['model.layers.1.mlp.up_proj.weight'\]"),
        ("unexpected", r"1 are unexpected \['model.layers.7"),
        ("shape", r"up_proj.weight has shape \(32, 64\), the model \(64, 32\)"),
        ("dtype", "up_proj.weight is torch.int32"),
        ("nan", "up_proj.weight holds NaN or infinity"),
        ("inf", "up_proj.weight holds NaN or infinity"),
    ],
)
def test_damaged_weights_are_refused_and_the_old_ones_stay(kind: str, message: str) -> None:
    with EmbeddedEngine(small_model("llama")) as engine:
        before = (engine.fingerprint(), engine.version)
        with pytest.raises(WeightsError, match=message):
            engine.load_weights(1, damaged(kind))
        assert (engine.fingerprint(), engine.version) == before


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    model = small_model("llama", seed=1)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with EmbeddedEngine(small_model("llama")) as engine:
        with pytest.raises(WeightsError, match="damaged or cut short"):
            engine.load_weights(1, tmp_path)
        with pytest.raises(WeightsError, match="does not exist"):
            engine.load_weights(1, tmp_path / "nowhere")
        (tmp_path / "model.safetensors.index.json").write_text('{"weight_map"')
        with pytest.raises(WeightsError, match=r"index\.json is damaged"):
            engine.load_weights(1, tmp_path)


def test_an_index_that_lists_more_than_its_files_hold_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "part.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "part.safetensors", "b": "part.safetensors"}}'
    )
    with (
        EmbeddedEngine(small_model("llama")) as engine,
        pytest.raises(WeightsError, match="b and 0 more tensors of the index are missing"),
    ):
        engine.load_weights(1, tmp_path)


def test_weights_that_are_not_what_was_published_are_refused() -> None:
    new = small_model("llama", seed=1).state_dict()
    with EmbeddedEngine(small_model("llama")) as engine:
        with pytest.raises(WeightsError, match="was published with fingerprint feed"):
            engine.load_weights(1, new, fingerprint="feed")
        assert engine.version == 0


def test_a_tied_model_refuses_a_head_that_differs_from_its_embedding() -> None:
    state = {k: v.clone() for k, v in small_model("llama-tied", seed=1).state_dict().items()}
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with EmbeddedEngine(small_model("llama-tied")) as engine, pytest.raises(WeightsError, match="are tied"):
        engine.load_weights(1, state)


def test_versions_only_go_up() -> None:
    with EmbeddedEngine(small_model("llama"), version=5) as engine:
        with pytest.raises(WeightsError, match="version 4 is older than the engine's 5"):
            engine.load_weights(4, small_model("llama").state_dict())
        engine.load_weights(5, small_model("llama").state_dict())


def core_of(model: Any, **settings: Any) -> EngineCore:
    config = EngineConfig(**settings)
    own = copy.deepcopy(model).requires_grad_(False)
    core = EngineCore(own, None, build_runner(own, config), config)
    core.model = own  # type: ignore[attr-defined]
    return core


def swap_in_flight(core: EngineCore, new: Any, steps_before: int) -> Any:
    core.add_request(
        Request(TokenState(PROMPT), SamplingParams(max_tokens=8, temperature=0.0), "talk", id="a")
    )
    for _ in range(steps_before):
        assert core.step() == []
    ready = check_weights(core.model, new.state_dict())  # type: ignore[attr-defined]
    core.apply_weights(2, lambda: copy_weights(core.model, ready))  # type: ignore[attr-defined]
    results = []
    while core.is_busy:
        results += core.step()
    return results[0].sampled


def test_a_request_in_flight_spans_the_versions_that_made_it() -> None:
    old, new = small_model("llama", torch.float64), small_model("llama", torch.float64, seed=1)
    got = swap_in_flight(core_of(old), new, steps_before=3)
    assert got.policy_version == VersionSpan(0, 2)
    ids = got.action.action_ids.tolist()
    assert ids[:3] == generate_alone(old, PROMPT, 3) and len(ids) == 8


def test_recomputing_in_flight_continues_exactly_as_the_new_weights_would() -> None:
    old, new = small_model("llama", torch.float64), small_model("llama", torch.float64, seed=1)
    got = swap_in_flight(core_of(old, on_new_weights="recompute"), new, steps_before=3)
    ids = got.action.action_ids.tolist()
    assert ids[:3] == generate_alone(old, PROMPT, 3)
    assert ids[3:] == generate_alone(new, PROMPT + ids[:3], 5)
    assert got.policy_version == VersionSpan(0, 2)


@pytest.mark.parametrize("policy", ["continue", "recompute"])
def test_no_cache_of_older_weights_reaches_a_later_request(policy: str) -> None:
    old, new = small_model("llama", torch.float64), small_model("llama", torch.float64, seed=1)
    core = core_of(old, on_new_weights=policy)
    first = swap_in_flight(core, new, steps_before=3)
    prompt = PROMPT + first.action.action_ids.tolist() + [9]
    core.add_request(
        Request(TokenState(prompt), SamplingParams(max_tokens=6, temperature=0.0), "talk", id="b")
    )
    results = []
    while core.is_busy:
        results += core.step()
    got = results[0].sampled
    assert got.action.action_ids.tolist() == generate_alone(new, prompt, 6)
    assert got.policy_version == VersionSpan.at(2)
    assert (got.num_cached > 0) == (policy == "recompute")
