"""Packed equals alone: outputs and gradients, for every family, batch, critic and budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.variants import keep_quick
from torch import Tensor
from transformers import AutoModelForCausalLM

from stepwell.core import InputError, Step
from stepwell.packing import Outputs, backward, pack, replay
from stepwell.policies import CausalLMPolicy

FAMILIES = ["llama", "mistral", "qwen3", "gemma2", "gemma3"]
BATCHES = ["dialogue", "rewritten", "group", "repeated", "value_only", "mixture"]
ALL = {"logprobs": True, "values": True, "entropies": True}


def largest_gap(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float(((ours - theirs).abs().max() / theirs.abs().max()).detach()) if theirs.numel() else 0.0


def coupled_loss(outputs: Outputs) -> tuple[Tensor, dict[str, float]]:
    """A loss in which everything depends on everything: no microbatch could compute its share alone."""
    assert outputs.logprobs is not None and outputs.values is not None and outputs.entropies is not None
    weights = torch.linspace(-1, 1, outputs.logprobs.numel(), dtype=outputs.logprobs.dtype)
    ratio = (weights * outputs.logprobs).mean().exp()
    spread = (outputs.values - 0.5).square().mean()
    return ratio + spread * outputs.logprobs.mean() + 0.1 * outputs.entropies.square().mean(), {"ratio": 1.0}


def gradients(policy: CausalLMPolicy, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*policy.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, materialize_grads=True), strict=True))


def alone(policy: CausalLMPolicy, steps: list[Step]) -> Outputs:
    parts = [policy.evaluate(pack([step]), **ALL) for step in steps]
    return Outputs(*(torch.cat([getattr(p, name) for p in parts]) for name in ALL))


def assert_equal(policy: CausalLMPolicy, ours: Outputs, theirs: Outputs) -> None:
    is_double = policy.model.dtype is torch.float64
    for name in ALL:
        a, b = getattr(ours, name), getattr(theirs, name)
        assert a.shape == b.shape
        assert largest_gap(a, b) < (1e-9 if is_double else 1e-5), name
    first, second = (gradients(policy, coupled_loss(outputs)[0]) for outputs in (ours, theirs))
    for name in first:
        if second[name].abs().max() > 0:
            assert largest_gap(first[name], second[name]) < (1e-9 if is_double else 1e-4), name


# The mixture has the steps of all other batches: in float32 there is only this one, and the default tier runs
# the others for one family.
CASES = [(f, b, "float64") for f in FAMILIES for b in BATCHES] + [(f, "mixture", "float32") for f in FAMILIES]


@pytest.mark.parametrize(
    ("family", "batch", "dtype"), keep_quick(CASES, lambda case: case[0] == "gemma3" or case[1] == "mixture")
)
def test_packed_equals_every_step_alone(family, batch, dtype, open_policy, batches) -> None:
    policy, steps = open_policy(family, dtype=dtype, critic="shared"), batches[batch]
    if batch == "value_only":
        ours, theirs = policy.values(pack(steps)), [policy.values(pack([step]))[0] for step in steps]
        for a, b in zip(ours, theirs, strict=True):
            assert largest_gap(a, b) < (1e-9 if dtype == "float64" else 1e-5)
        return
    assert_equal(policy, policy.evaluate(pack(steps), **ALL), alone(policy, steps))


@pytest.mark.parametrize("family", keep_quick(FAMILIES, ("llama", "gemma3").__contains__))
def test_own_critic_equals_every_step_alone(family, open_policy, batches) -> None:
    policy, steps = open_policy(family, dtype="float64", critic="own"), batches["mixture"]
    assert_equal(policy, policy.evaluate(pack(steps), **ALL), alone(policy, steps))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_the_model_of_transformers(family, dtype, open_policy, family_path, batches) -> None:
    policy, steps = open_policy(family, dtype=dtype, critic="shared"), batches["mixture"]
    # eager attention is the one that knows soft caps; its softmax is float32 even in float64 models
    eager = {"attn_implementation": "eager"} if family == "gemma2" else {}
    model = AutoModelForCausalLM.from_pretrained(family_path(family), dtype=policy.model.dtype, **eager)
    tolerance = 1e-9 if dtype == "float64" and not eager else 1e-5
    with torch.no_grad():
        for step, ours in zip(steps, policy.logprobs(pack(steps)), strict=True):
            prompt, action = step.state.prompt_ids, torch.from_numpy(step.action.action_ids.astype(np.int64))
            ids = torch.from_numpy(np.concatenate([prompt, step.action.action_ids]).astype(np.int64))
            logits = model(ids[None]).logits[0, prompt.size - 1 : -1] / step.sampling.logit_temperature
            theirs = torch.log_softmax(logits, -1).gather(1, action[:, None])[:, 0]
            assert largest_gap(ours, theirs) < tolerance


@pytest.mark.parametrize("critic", ["shared", "own"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_budget_gives_the_same_gradient_of_a_coupled_loss(family, critic, open_policy, batches) -> None:
    policy = open_policy(family, dtype="float64", critic=critic)
    steps = [step for step in batches["mixture"] if step.state.prompt_ids.size < 80]
    found = []
    for budget in (None, 40, 60, 120):
        for parameter in policy.parameters():
            parameter.grad = None
        packed = pack(steps, token_budget=budget)
        loss, metrics, outputs = backward(policy, packed, coupled_loss, **ALL)
        grads = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
        found.append((len(packed.microbatches), float(loss), metrics, outputs, grads))
    counts, losses, *_ = zip(*found, strict=True)
    assert counts[0] == 1 and counts[1] > counts[2] > counts[3] > 1
    assert max(losses) - min(losses) < 1e-12
    for _, _, metrics, outputs, grads in found[1:]:
        assert metrics == {"ratio": 1.0} and not outputs.logprobs.requires_grad
        assert largest_gap(outputs.logprobs, found[0][3].logprobs) < 1e-12
        for name, grad in grads.items():
            assert largest_gap(grad, found[0][4][name]) < 1e-9, name


@pytest.mark.parametrize("family", FAMILIES)
def test_replay_equals_the_tree(family, open_policy, batches) -> None:
    steps = batches["mixture"]
    tree = open_policy(family, dtype="float32", critic="shared").evaluate(pack(steps), **ALL)
    for policy in (
        open_policy(family, dtype="float32", critic="shared", attention="replay"),
        open_policy(family, dtype="float32", critic="shared"),
    ):
        replayed = policy.evaluate(replay(pack(steps, token_budget=200)), **ALL)
        for name in ALL:
            assert largest_gap(getattr(replayed, name), getattr(tree, name)) < 1e-5


def test_replay_runs_every_token_and_the_tree_only_distinct_prefixes(batches) -> None:
    packed = pack(batches["group"])
    assert replay(packed).num_tokens == packed.num_step_tokens > 2 * packed.num_tokens


def test_nan_is_refused_before_it_reaches_a_gradient(family_path, batches) -> None:
    policy = CausalLMPolicy.from_pretrained(family_path("llama"), critic="shared")
    with torch.no_grad():
        policy.model.lm_head.weight[5, 0] = float("nan")
    with pytest.raises(InputError, match="logprobs contains NaN"):
        policy.logprobs(pack(batches["group"]))
    with pytest.raises(InputError, match="contains NaN"):
        backward(policy, pack(batches["group"]), coupled_loss, **ALL)
    assert all(parameter.grad is None for parameter in policy.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3"])
def test_gpu_equals_cpu(family, family_path, open_policy, batches) -> None:
    steps = batches["mixture"]
    ours = CausalLMPolicy.from_pretrained(family_path(family), critic="shared", device="cuda")
    ours.load_state_dict(open_policy(family, dtype="float32", critic="shared").state_dict())
    theirs = open_policy(family, dtype="float32", critic="shared")
    results = []
    for policy in (ours, theirs):
        outputs = policy.evaluate(pack(steps, token_budget=250), **ALL)
        outputs = outputs.map(torch.Tensor.cpu)
        grads = gradients(policy, coupled_loss(outputs)[0])
        results.append((outputs, {name: grad.cpu() for name, grad in grads.items()}))
    for name in ALL:
        assert largest_gap(getattr(results[0][0], name), getattr(results[1][0], name)) < 1e-4
    for name, grad in results[1][1].items():
        assert largest_gap(results[0][1][name], grad) < 1e-3


@pytest.mark.gpu
def test_bfloat16_on_the_gpu_stays_near_float32(family_path, batches) -> None:
    steps = batches["mixture"]
    half, full = (
        CausalLMPolicy.from_pretrained(family_path("llama"), dtype=dtype, device="cuda", critic="shared")
        for dtype in ("bfloat16", "float32")
    )
    ours, theirs = (policy.evaluate(pack(steps), values=True) for policy in (half, full))
    assert ours.logprobs.dtype is ours.values.dtype is torch.float32
    assert largest_gap(ours.logprobs, theirs.logprobs) < 0.1
