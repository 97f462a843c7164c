"""Directories of models: damaged ones are refused by name, those of other architectures are replayed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.policies.conftest import CONTEXT, VOCAB
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from stepwell.core import (
    ConfigError,
    ModelError,
)
from stepwell.packing import pack
from stepwell.policies import CausalLMPolicy


def test_empty_and_unknown_directories_are_refused(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        CausalLMPolicy.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no-such-model"):
        CausalLMPolicy.from_pretrained("no-such-model")


def _cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _drop_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _change_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 25}))


DAMAGES = {
    "cut weights": _cut_weights,
    "missing weight": _drop_a_weight,
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "other shape": _change_shape,
    "broken config": lambda folder: (folder / "config.json").write_text('{"model_type": "llama"'),
    "unknown architecture": lambda folder: (folder / "config.json").write_text('{"model_type": "zzz"}'),
    "broken policy file": lambda folder: (folder / "stepwell_policy.json").write_text("{}"),
    "cut value head": lambda folder: (folder / "value_head.safetensors").write_bytes(b"123"),
    "missing value head": lambda folder: (folder / "value_head.safetensors").unlink(),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_directories_are_refused_by_name(path, name, tmp_path) -> None:
    folder = tmp_path / "damaged"
    CausalLMPolicy.from_pretrained(path, critic="shared").save_pretrained(folder)
    DAMAGES[name](folder)
    with pytest.raises(ModelError, match=r"damaged.*(save the model again|is incomplete)"):
        CausalLMPolicy.from_pretrained(folder)


# --- models whose attention cannot be replaced ------------------------------------------


SMALL = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": CONTEXT,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FOREIGN: dict[str, tuple[str, dict[str, Any], str]] = {
    "state space": ("mamba", {"state_size": 4}, "does not use the attention interface"),
    "convolution": ("lfm2", {"layer_types": ["conv", "full_attention"]}, "different outputs"),
    "attention sinks": ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "takes s_aux"),
    "chunks": (
        "llama4_text",
        {"attention_chunk_size": 4, "layer_types": ["chunked_attention", "full_attention"], "moe_layers": []},
        "not causal within a window",
    ),
    "positions by length": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "depend on the sequence length",
    ),
}


def _save_foreign(kind: str, folder: Path) -> Path:
    torch.manual_seed(0)
    family, settings, _ = FOREIGN[kind]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(SMALL | settings)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_models_are_replayed_with_one_warning_and_equal_results(kind, steps, tmp_path) -> None:
    folder = _save_foreign(kind, tmp_path / "foreign")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = CausalLMPolicy.from_pretrained(folder, critic="shared", reference=True)
        packed = pack(steps + steps[:1])
        logprobs, values = policy.logprobs(packed), policy.values(packed)
        policy.reference_logprobs(packed)
    ours = [warning for warning in caught if "cannot run prefix trees" in str(warning.message)]
    assert len(ours) == 1 and FOREIGN[kind][2] in str(ours[0].message) and policy.is_replayed
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    for step, logprob, value in zip(steps + steps[:1], logprobs, values, strict=True):
        prompt, action = step.state.prompt_ids, step.action.action_ids.astype(np.int64)
        ids = torch.from_numpy(np.concatenate([prompt, action]).astype(np.int64))[None]
        expected = torch.log_softmax(plain(ids).logits[0, prompt.size - 1 : -1], -1)
        torch.testing.assert_close(logprob, expected[torch.arange(action.size), torch.from_numpy(action)])
        assert value.shape == (action.size + 1,)
    with pytest.raises(ConfigError, match="attention='tree' was requested"):
        CausalLMPolicy.from_pretrained(folder, attention="tree")


def test_learned_positions_run_as_trees_too(steps, tmp_path) -> None:
    """GPT-2: no rotary positions, but positions are given, and the probe proves it."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    policy = CausalLMPolicy.from_pretrained(tmp_path / "gpt2", attention="tree")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2").eval()
    ids = np.concatenate([steps[0].state.prompt_ids, steps[0].action.action_ids]).astype(np.int64)
    logits = plain(torch.from_numpy(ids)[None]).logits[0, 9:-1]
    expected = torch.log_softmax(logits, -1)[torch.arange(3), torch.from_numpy(ids[10:])]
    torch.testing.assert_close(policy.logprobs(pack(steps))[0], expected)
