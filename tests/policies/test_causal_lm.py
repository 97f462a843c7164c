"""CausalLMPolicy: what it computes, trains, writes and refuses, on a small Llama."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from tests.policies.conftest import CONTEXT, VOCAB
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
)

from stepwell.core import (
    ConfigError,
    ContextLengthError,
    Critic,
    ImageSpan,
    InputError,
    Sampling,
    Scorer,
    Step,
    TokenState,
    WeightsError,
    hash_bytes,
)
from stepwell.packing import backward, pack
from stepwell.policies import CausalLMPolicy


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
