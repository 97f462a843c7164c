"""CausalLMPolicy: what it computes, trains, writes and refuses, on a small Llama."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from stepwell.core import (
    ConfigError,
    ContextLengthError,
    Critic,
    ImageSpan,
    InputError,
    ModelError,
    Sampling,
    Scorer,
    Step,
    TokenState,
    WeightsError,
    hash_bytes,
)
from stepwell.packing import backward, pack
from stepwell.policies import CausalLMPolicy

VOCAB, CONTEXT = 40, 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with dropout in its config and files a tokenizer would leave."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, attention_dropout=0.5,
        tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "llama"
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def steps() -> list[Step]:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, VOCAB, size=10)
    return [Step.from_tokens(prompt, draw.integers(0, VOCAB, size=n)) for n in (3, 5, 1)]


def step_down(policy: CausalLMPolicy, steps: list[Step]) -> None:
    """One step of gradient descent on the mean logprob (and the values, with a critic)."""

    def loss(outputs: Any) -> tuple[Tensor, dict[str, Any]]:
        value = outputs.values.square().mean() if outputs.values is not None else 0.0
        return value - outputs.logprobs.mean(), {}

    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    optimizer.zero_grad()
    backward(policy, pack(steps), loss, values=policy.critic is not None)
    optimizer.step()


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts).detach()


# --- what it computes -------------------------------------------------------------------


def test_logprobs_are_of_the_distribution_divided_by_the_temperature(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path, dtype="float64")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    for temperature, divisor in ((1.0, 1.0), (0.5, 0.5), (2.0, 2.0), (0.0, 1.0)):
        step = Step.from_tokens([1, 2, 3], [4, 5], sampling=Sampling(temperature=temperature))
        (ours,) = policy.logprobs(pack([step]))
        logits = model(torch.tensor([[1, 2, 3, 4, 5]])).logits[0, 2:4] / divisor
        theirs = torch.log_softmax(logits, -1)[[0, 1], [4, 5]]
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_one_state_under_two_temperatures_keeps_both(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path)
    pair = [Step.from_tokens([1, 2], [3], sampling=Sampling(temperature=t)) for t in (1.0, 0.5)]
    both = policy.logprobs(pack(pair))
    each = [policy.logprobs(pack([step]))[0] for step in pair]
    torch.testing.assert_close(both, each)
    assert abs(both[0].item() - both[1].item()) > 1e-3


def test_values_are_the_head_on_hidden_states_before_each_token_and_after_the_last(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic="shared")
    (values,) = policy.values(pack([Step.from_tokens([1, 2, 3], [4, 5])]))
    hidden = policy.model.model(torch.tensor([[1, 2, 3, 4, 5]])).last_hidden_state[0, 2:]
    torch.testing.assert_close(values, hidden @ policy.critic.head.weight + policy.critic.head.bias)


def test_entropies_are_those_of_the_sampling_distribution(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path)
    (entropies,) = policy.entropies(pack([Step.from_tokens([1, 2], [3])]))
    logprobs = torch.log_softmax(policy.model(torch.tensor([[1, 2]])).logits[0, -1], -1)
    torch.testing.assert_close(entropies[0], -(logprobs.exp() * logprobs).sum())


def test_policy_is_a_scorer_and_a_critic(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic="shared")
    assert isinstance(policy, Scorer) and isinstance(policy, Critic)
    for scored, logprobs in zip(policy.score(steps), policy.logprobs(pack(steps)), strict=True):
        assert scored.dtype == np.float32
        np.testing.assert_array_equal(scored, logprobs.detach().numpy())
    values = policy.state_values([step.state for step in steps])
    first = [part[0].item() for part in policy.values(pack(steps))]
    np.testing.assert_allclose(values, first, rtol=1e-6)


def test_dropout_is_off_also_under_gradient_checkpointing(path, steps) -> None:
    for checkpointing in (False, True):
        policy = CausalLMPolicy.from_pretrained(path, gradient_checkpointing=checkpointing)
        first, second = (joined(policy.logprobs(pack(steps))) for _ in range(2))
        assert torch.equal(first, second)
        assert policy.model.config.attention_dropout == 0.5  # what is saved keeps its settings


def test_model_still_generates_and_runs_plain_batches(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path)
    plain = AutoModelForCausalLM.from_pretrained(path).eval()
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(policy.model.generate(ids, **options), plain.generate(ids, **options))


# --- how it trains ----------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["shared", "own"])
def test_gradient_checkpointing_gives_equal_gradients(path, steps, critic) -> None:
    grads = []
    for checkpointing in (False, True):
        policy = CausalLMPolicy.from_pretrained(path, critic=critic, gradient_checkpointing=checkpointing)
        outputs = policy.evaluate(pack(steps), values=True)
        (outputs.logprobs.mean() + outputs.values.square().mean()).backward()
        grads.append({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})
    assert len(grads[0]) == len(grads[1]) > 10
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-7)


def test_checkpointing_recomputes_layers_in_the_backward_pass(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path, gradient_checkpointing=True)
    calls = []
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    loss = torch.cat(policy.logprobs(pack(steps))).mean()
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2


def test_training_raises_the_logprobs_it_was_asked_to_raise(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic="shared")
    before = joined(policy.logprobs(pack(steps))).mean()
    for _ in range(5):
        step_down(policy, steps)
    assert joined(policy.logprobs(pack(steps))).mean() > before + 0.1


def test_reference_is_unaffected_by_training_and_not_part_of_the_policy(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path, reference=True)
    before = joined(policy.logprobs(pack(steps)))
    step_down(policy, steps)
    reference = policy.reference_logprobs(pack(steps))
    assert torch.equal(joined(reference), before) and not reference[0].requires_grad
    assert not torch.equal(joined(policy.logprobs(pack(steps))), before)
    frozen = {id(p) for p in policy.reference.parameters()}
    assert not frozen & {id(p) for p in policy.parameters()}
    assert all(name.startswith("model.") for name in policy.state_dict())


def test_reference_may_be_another_model(path, steps, tmp_path) -> None:
    trained = CausalLMPolicy.from_pretrained(path)
    step_down(trained, steps)
    trained.save_pretrained(tmp_path / "trained")
    policy = CausalLMPolicy.from_pretrained(path, reference=tmp_path / "trained")
    torch.testing.assert_close(
        joined(policy.reference_logprobs(pack(steps))), joined(trained.logprobs(pack(steps)))
    )


def test_own_critic_and_actor_never_touch(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic="own")
    outputs = policy.evaluate(pack(steps), values=True)
    outputs.values.square().mean().backward()
    assert all(p.grad is None for p in policy.model.parameters())
    assert policy.critic.backbone.layers[0].mlp.up_proj.weight.grad.abs().max() > 0


# --- LoRA -------------------------------------------------------------------------------


@pytest.fixture
def lora_policy(path, steps) -> CausalLMPolicy:
    """A policy whose adapters have moved away from zero."""
    torch.manual_seed(1)
    policy = CausalLMPolicy.from_pretrained(path, critic="shared", lora={"r": 4})
    for _ in range(3):
        step_down(policy, steps)
    return policy


def test_lora_trains_adapters_and_head_only_and_its_base_is_the_reference(path, steps, lora_policy) -> None:
    base = CausalLMPolicy.from_pretrained(path)
    names = [name for name, _ in lora_policy.named_parameters()]
    assert all("lora_" in name or name.startswith("critic.head.") for name in names)
    assert sum("lora_" in name for name in names) == 2 * 7 * 2  # A and B, 7 maps, 2 layers
    before = joined(base.logprobs(pack(steps)))
    assert torch.equal(joined(lora_policy.reference_logprobs(pack(steps))), before)
    assert (joined(lora_policy.logprobs(pack(steps))) - before).abs().max() > 1e-3


def test_lora_packed_equals_alone(steps, lora_policy) -> None:
    each = [lora_policy.logprobs(pack([step]))[0] for step in steps]
    torch.testing.assert_close(lora_policy.logprobs(pack(steps)), each, rtol=1e-5, atol=1e-6)


def test_lora_round_trip_in_peft_format(path, steps, lora_policy, tmp_path) -> None:
    lora_policy.save_pretrained(tmp_path / "adapters")
    expected = joined(lora_policy.logprobs(pack(steps)))
    reopened = CausalLMPolicy.from_pretrained(tmp_path / "adapters")
    assert torch.equal(joined(reopened.logprobs(pack(steps))), expected)
    assert torch.equal(joined(reopened.values(pack(steps))), joined(lora_policy.values(pack(steps))))
    assert any(p.requires_grad for n, p in reopened.named_parameters() if "lora_" in n)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "adapters")
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(model(ids).logits, lora_policy.model(ids).logits)
    assert not (tmp_path / "adapters" / "model.safetensors").exists()


def test_lora_merged_on_request_and_for_engines(steps, lora_policy, tmp_path) -> None:
    before = copy.deepcopy(lora_policy.state_dict())
    lora_policy.save_pretrained(tmp_path / "merged", merge_lora=True)
    merged = CausalLMPolicy.from_pretrained(tmp_path / "merged")
    assert merged.adapters is None
    torch.testing.assert_close(
        joined(merged.logprobs(pack(steps))), joined(lora_policy.logprobs(pack(steps)))
    )
    torch.testing.assert_close(lora_policy.model_weights(), merged.model_weights())
    assert all(torch.equal(before[name], tensor) for name, tensor in lora_policy.state_dict().items())


def test_lora_with_an_own_critic_starts_from_the_plain_backbone(path, steps) -> None:
    plain = CausalLMPolicy.from_pretrained(path, critic="own")
    policy = CausalLMPolicy.from_pretrained(path, critic="own", lora={})
    assert torch.equal(joined(policy.values(pack(steps))), joined(plain.values(pack(steps))))
    assert all(p.requires_grad for p in policy.critic.parameters())


def test_lora_settings_are_checked(path, lora_policy, tmp_path) -> None:
    with pytest.raises(ConfigError, match="lora: "):
        CausalLMPolicy.from_pretrained(path, lora={"rank": 4})
    lora_policy.save_pretrained(tmp_path / "adapters")
    with pytest.raises(ConfigError, match="already has LoRA adapters"):
        CausalLMPolicy.from_pretrained(tmp_path / "adapters", lora={})


# --- what it writes ---------------------------------------------------------------------


@pytest.mark.parametrize("critic", [None, "shared", "own"])
def test_saved_directory_opens_in_transformers_and_here(path, steps, critic, tmp_path) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic=critic)
    step_down(policy, steps)
    policy.save_pretrained(tmp_path / "saved")
    ids = torch.tensor([[1, 2, 3]])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(model(ids).logits, policy.model(ids).logits)
    reopened = CausalLMPolicy.from_pretrained(tmp_path / "saved")
    assert (reopened.critic.kind if reopened.critic else None) == critic
    ours, theirs = policy.state_dict(), reopened.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (tmp_path / "saved" / "tokenizer.json").read_text() == '{"a": 1}'
    assert (tmp_path / "saved" / "chat_template.jinja").exists()
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["attention_dropout"] == 0.5 and "stepwell_tree" not in str(config)


def test_saving_again_replaces_the_whole_directory(path, steps, tmp_path) -> None:
    first = CausalLMPolicy.from_pretrained(path, critic="own")
    first.save_pretrained(tmp_path / "saved")
    second = CausalLMPolicy.from_pretrained(path)
    step_down(second, steps)
    second.save_pretrained(tmp_path / "saved")
    reopened = CausalLMPolicy.from_pretrained(tmp_path / "saved")
    assert reopened.critic is None and not (tmp_path / "saved" / "critic").exists()
    assert torch.equal(joined(reopened.logprobs(pack(steps))), joined(second.logprobs(pack(steps))))
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_interrupted_save_leaves_the_old_directory_whole(path, tmp_path, monkeypatch) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic="shared")
    policy.save_pretrained(tmp_path / "saved")
    before = {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("stepwell.policies.directory.write_critic", fail)
    with pytest.raises(OSError, match="disk full"):
        policy.save_pretrained(tmp_path / "saved")
    assert {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_state_dict_of_the_same_kind_loads_and_any_other_is_refused_whole(path, steps) -> None:
    trained, fresh = (CausalLMPolicy.from_pretrained(path, critic="shared") for _ in range(2))
    step_down(trained, steps)
    weights = trained.state_dict()
    before = copy.deepcopy(fresh.state_dict())
    missing = {name: tensor for name, tensor in weights.items() if name != "critic.head.weight"}
    wrong = weights | {"critic.head.weight": torch.zeros(3)}
    for bad in (missing, wrong, weights | {"more": torch.zeros(1)}):
        with pytest.raises(WeightsError, match="1 weights are missing, unknown or have another shape"):
            fresh.load_state_dict(bad)
    assert all(torch.equal(before[name], tensor) for name, tensor in fresh.state_dict().items())
    fresh.load_state_dict(weights)
    assert torch.equal(joined(fresh.values(pack(steps))), joined(trained.values(pack(steps))))


# --- what bad input gets ----------------------------------------------------------------


def test_prompt_over_the_context_is_refused(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path)
    assert policy.context_length == CONTEXT
    assert policy.logprobs(pack([Step.from_tokens([1] * (CONTEXT - 2), [2, 3])]))[0].shape == (2,)
    with pytest.raises(ContextLengthError, match=r"65 tokens .* context is 64"):
        policy.logprobs(pack([Step.from_tokens([1] * CONTEXT, [2])]))


def test_ids_outside_the_vocabulary_are_refused(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path)
    with pytest.raises(InputError, match="contain id 40, but the model's vocabulary has 40 tokens"):
        policy.logprobs(pack([Step.from_tokens([1, 2], [VOCAB])]))


def test_values_without_a_critic_and_reference_without_one_are_refused(path, steps) -> None:
    policy = CausalLMPolicy.from_pretrained(path)
    with pytest.raises(ConfigError, match="values need a critic"):
        policy.values(pack(steps))
    with pytest.raises(ConfigError, match="no reference"):
        policy.reference_logprobs(pack(steps))


def test_images_are_refused_by_a_language_policy(path) -> None:
    span = ImageSpan(hash_bytes(b"x"), 0, 1)
    with pytest.raises(InputError, match="images"):
        CausalLMPolicy.from_pretrained(path).logprobs(pack([Step.from_tokens([1, 2], [3], images=(span,))]))


def test_state_values_refuse_nothing_to_value(path) -> None:
    policy = CausalLMPolicy.from_pretrained(path, critic="shared")
    with pytest.raises(InputError, match="empty"):
        policy.state_values([])
    assert policy.state_values([TokenState(np.array([1, 2]))]).shape == (1,)


@pytest.mark.parametrize("field", ["dtype", "attention", "critic"])
def test_unknown_options_are_named(path, field) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be"):
        CausalLMPolicy.from_pretrained(path, **{field: "nonsense"})


def test_another_kind_of_critic_is_not_thrown_away(path, tmp_path) -> None:
    CausalLMPolicy.from_pretrained(path, critic="shared").save_pretrained(tmp_path / "saved")
    with pytest.raises(ConfigError, match="has a critic of kind 'shared'"):
        CausalLMPolicy.from_pretrained(tmp_path / "saved", critic="own")


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
