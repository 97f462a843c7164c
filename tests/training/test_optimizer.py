"""Weights of 16 bits are learnt in 32, and a checkpoint keeps what the rounding hides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stepwell.config.training import OptimizerConfig
from stepwell.core import WeightsError
from stepwell.training.optimizer import Optimizer

KINDS = ("adamw", "muon")


def made(dtype: torch.dtype, kind: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).to(dtype)
    config = OptimizerConfig(kind=kind, learning_rate=1e-5, muon_learning_rate=1e-5)  # type: ignore[arg-type]
    return model, Optimizer(model.named_parameters(), config)


def learn(model: nn.Module, optimizer: Optimizer, num_steps: int) -> None:
    """Gradients that are the same whatever the weights are, as bfloat16 can hold them."""
    for _ in range(num_steps):
        optimizer.zero_grad()
        for number, parameter in enumerate(model.parameters()):
            signs = torch.ones(parameter.shape)
            signs.flatten()[:: number + 2] = -1.0
            parameter.grad = signs.to(parameter.dtype)
        optimizer.step()


def values(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().float().clone() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_small_updates_of_bfloat16_weights_add_up_as_those_of_float32_weights(kind: str) -> None:
    half, optimizer = made(torch.bfloat16, kind)
    whole, theirs = made(torch.float32, kind)
    whole.load_state_dict(half.state_dict())
    before = values(half)
    learn(half, optimizer, 1)
    assert (
        sum(int((a != b).sum()) for a, b in zip(values(half), before, strict=True)) < 20
    )  # of 108: most stay
    learn(half, optimizer, 999)
    learn(whole, theirs, 1000)
    for found, expected in zip(values(half), values(whole), strict=True):
        torch.testing.assert_close(found, expected.bfloat16().float(), rtol=0.008, atol=1e-6)
    moved = [(a - b).abs().max().item() for a, b in zip(values(half), before, strict=True)]
    assert max(moved) > 1e-3  # a hundred times what one update does


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_from_a_checkpoint_gives_the_same_bits(kind: str) -> None:
    model, optimizer = made(torch.bfloat16, kind)
    learn(model, optimizer, 50)
    kept: Any = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    kept = torch.utils._pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, kept)
    learn(model, optimizer, 200)
    again, other = made(torch.bfloat16, kind)
    again.load_state_dict(kept["model"])
    other.load_state_dict(kept["optimizer"])
    learn(again, other, 200)
    for found, expected in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(found, expected)
    for found, expected in zip(
        other.state_dict()[-1].values(), optimizer.state_dict()[-1].values(), strict=True
    ):
        assert torch.equal(found, expected)


def test_weights_written_from_outside_count_and_the_others_keep_their_fractions() -> None:
    model, optimizer = made(torch.bfloat16, "adamw")
    learn(model, optimizer, 3)
    before = next(iter(optimizer.state_dict()[-1].values())).clone()
    weight = next(model.parameters())
    with torch.no_grad():
        weight[0, 0] = 7.0
    learn(model, optimizer, 1)
    after = next(iter(optimizer.state_dict()[-1].values()))
    assert after[0, 0].item() == pytest.approx(7.0, abs=1e-4) and weight[0, 0].item() == 7.0
    rest = (after - before).flatten()[1:].abs()
    assert rest.min() > 0.0 and rest.max() < 2e-5


def test_weights_of_32_bits_have_no_second_copy() -> None:
    _, optimizer = made(torch.float32, "adamw")
    assert len(optimizer.state_dict()) == 1 and optimizer._originals == {}
    _, other = made(torch.bfloat16, "adamw")
    with pytest.raises(WeightsError, match=r"nor policy\.dtype"):
        other.load_state_dict(optimizer.state_dict())
