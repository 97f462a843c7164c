"""AdamW with moments in the host's memory is AdamW; in 8 bits it is near it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from stepwell.config.training import OptimizerConfig
from stepwell.core import WeightsError
from stepwell.training.compact_adamw import ByteMoments
from stepwell.training.optimizer import Optimizer


def make_pair(state: Any, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)).to(dtype)
    config = OptimizerConfig(learning_rate=3e-3, weight_decay=0.01, state=state)
    return model, Optimizer(model.named_parameters(), config)


def train(model: nn.Module, optimizer: Optimizer, num_steps: int, seed: int = 1) -> list[float]:
    draw = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(num_steps):
        x = torch.randn(16, 40, generator=draw)
        target = torch.stack([x[:, :5].sum(1), x[:, 5] * x[:, 6], x[:, 7].sign()], 1)
        wide = {name: parameter.float() for name, parameter in model.named_parameters()}
        loss = (torch.func.functional_call(model, wide, x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_in_host_memory_give_the_same_bits_as_adamw(dtype: torch.dtype) -> None:
    (plain, theirs), (ours, optimizer) = make_pair("full", dtype), make_pair("offload", dtype)
    assert train(plain, theirs, 30) == train(ours, optimizer, 30)
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_moments_in_8_bits_learn_as_fast() -> None:
    (plain, theirs), (ours, optimizer) = make_pair("full"), make_pair("8bit")
    exact, coarse = train(plain, theirs, 200), train(ours, optimizer, 200)
    assert exact[0] == coarse[0]
    assert sum(exact[-25:]) < 0.5 * sum(exact[:25])
    assert sum(coarse[-25:]) < 1.05 * sum(exact[-25:])


@pytest.mark.parametrize("state", ["8bit", "offload"])
def test_a_run_that_goes_on_from_a_checkpoint_gives_the_same_bits(state: str) -> None:
    model, optimizer = make_pair(state)
    train(model, optimizer, 5)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, seed=2)
    again, other = make_pair(state)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(again, other, 5, seed=2)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_moments_of_another_form_are_refused() -> None:
    model, optimizer = make_pair("full")
    train(model, optimizer, 1)
    _, other = make_pair("8bit")
    with pytest.raises(WeightsError, match=r"train\.optimizer\.state must not change"):
        other.load_state_dict(optimizer.state_dict())


def test_bytes_keep_moments_to_a_few_percent_and_squares_never_below() -> None:
    torch.manual_seed(0)
    parameter = torch.zeros(3, 333)
    mean = torch.randn(3, 333) * 10.0 ** torch.randint(-4, 1, (3, 333))
    square = torch.rand(3, 333) * 10.0 ** torch.randint(-8, 1, (3, 333))
    kept = ByteMoments()
    state = kept.make(parameter)
    kept.write(state, mean, square)
    found_mean, found_square = kept.read(state, parameter)
    block_top = mean.abs().max()
    assert float((found_mean - mean).abs().max() / block_top) < 0.01
    assert bool((found_square >= square * (1 - 1e-5)).all())
    is_large = square > 1e-2 * square.max()
    assert float((found_square / square)[is_large].max()) < 1.06
    assert sum(each.nbytes for each in state.values()) < 0.3 * (mean.nbytes + square.nbytes)
