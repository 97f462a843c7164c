"""The full KL of packed steps is the formula on the plain logits of both models, for every kind of head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepwell.algos.kl import full as full_kl
from stepwell.core import Step, TokenAction, TokenState
from stepwell.packing import evaluate, pack
from stepwell.policies import CausalLMPolicy

SOFTCAP = 6.0
"""Low enough to bend the logits of these models: without it the KL is another one."""


@pytest.fixture(params=["llama", "gemma2", "gemma3"])
def policy(request: pytest.FixtureRequest, family_path: Callable[[str], Path]) -> CausalLMPolicy:
    """A policy and a reference with other weights; only gemma2's head is more than one product."""
    torch.manual_seed(0)
    own = CausalLMPolicy.from_pretrained(family_path(request.param), dtype="float64", reference=True)
    if request.param == "gemma2":
        models: list[Any] = [own.model, own.reference]
        for model in models:
            model.config.final_logit_softcapping = SOFTCAP
    with torch.no_grad():
        for parameter in own.model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return own


def compute_plain_logits(model: Any, step: Step) -> torch.Tensor:
    """The logits of the step's action from one call of the model alone, at the step's temperature."""
    assert isinstance(step.state, TokenState) and isinstance(step.action, TokenAction)
    ids = torch.tensor(np.concatenate([step.state.prompt_ids, step.action.action_ids]))[None].long()
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[
        0, step.state.prompt_ids.size - 1 : -1
    ]
    return logits / step.sampling.logit_temperature


def test_the_full_kl_of_packed_steps_is_the_plain_formula(
    policy: CausalLMPolicy, batches: dict[str, list[Step]]
) -> None:
    steps = batches["mixture"]
    sides = (
        [compute_plain_logits(model, step) for step in steps] for model in (policy.model, policy.reference)
    )
    expected = full_kl(*map(torch.cat, sides))
    found = evaluate(policy, pack(steps), ref_kls=True).ref_kls
    assert found is not None and float(expected.detach().mean()) > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # Gemma norms are float32
    ours, plain = (
        torch.autograd.grad(kls.mean(), list(policy.parameters()), allow_unused=True)
        for kls in (found, expected)
    )
    for (name, _), one, other in zip(policy.named_parameters(), ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, msg=name)
