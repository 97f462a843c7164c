"""The same numbers on a CUDA device as on the CPU, and the same bits every time."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from stepwell.algos import LossInputs, Timeline, credit, losses

pytestmark = pytest.mark.gpu


def batch(device: str) -> tuple[Timeline, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 9, (40,), generator=generator)
    tokens = torch.randint(1, 60, (int(steps.sum()),), generator=generator)
    n = int(tokens.sum())
    timeline = Timeline(
        steps,
        tokens,
        rewards=torch.rand(len(tokens), generator=generator),
        token_values=torch.rand(n, generator=generator),
        end_values=torch.rand(len(tokens), generator=generator),
        token_rewards=torch.rand(n, generator=generator),
        groups=torch.arange(40) % 5,
        anchors=torch.randint(0, 3, (len(tokens),), generator=generator),
        instruction_values=torch.rand(40, generator=generator),
    )
    behavior = -torch.rand(n, generator=generator)
    tensors = {
        "policy_logprobs": behavior + 0.1 * torch.randn(n, generator=generator),
        "behavior_logprobs": behavior,
        "advantages": torch.randn(n, generator=generator),
        "ref_logprobs": behavior + 0.1 * torch.randn(n, generator=generator),
        "proximal_logprobs": behavior + 0.1 * torch.randn(n, generator=generator),
        "loss_mask": torch.rand(n, generator=generator) < 0.8,
        "pairs": torch.arange(len(tokens) // 2 * 2).reshape(-1, 2),
    }
    return timeline.to(device), {name: tensor.to(device) for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", list(credit.CREDIT))
def test_credit_agrees_across_devices_and_repeats(name: str) -> None:
    here, there, again = (credit.CREDIT[name](batch(device)[0]) for device in ("cpu", "cuda", "cuda"))
    for field in fields(here):
        value, other = getattr(here, field.name), getattr(there, field.name)
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(other.cpu(), value, rtol=1e-5, atol=1e-5)
            assert torch.equal(other, getattr(again, field.name))


CALLS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in losses.LOSSES]
CALLS += [
    ("ppo_loss", {"ratio": "step"}),
    ("ppo_loss", {"ratio": "trajectory", "aggregate": "trajectory_mean"}),
]


@pytest.mark.parametrize(("name", "kwargs"), CALLS)
def test_losses_agree_across_devices_and_repeat(name: str, kwargs: dict[str, Any]) -> None:
    results = []
    for device in ("cpu", "cuda", "cuda"):
        timeline, tensors = batch(device)
        timeline = replace(timeline, anchors=None)  # pairs are checked against anchors; these are random
        point = tensors["policy_logprobs"].requires_grad_()
        loss, _ = losses.LOSSES[name](LossInputs(timeline, **tensors), **kwargs)
        loss.backward()
        results.append((loss.detach(), point.grad))
    (cpu_loss, cpu_grad), (loss, grad), (again_loss, again_grad) = results
    torch.testing.assert_close(loss.cpu(), cpu_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.cpu(), cpu_grad, rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]
    assert torch.equal(loss, again_loss) and torch.equal(grad, again_grad)  # type: ignore[arg-type]
