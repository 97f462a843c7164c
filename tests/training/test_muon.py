"""Muon: the published algorithm, in a precision that the CPU has, and checkpoints of either class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepwell.config.training import OptimizerConfig
from stepwell.training.muon import Muon, orthogonalize
from stepwell.training.optimizer import Optimizer

SHAPES = ((6, 6), (4, 9), (12, 5))


class DtypesSeen(TorchDispatchMode):
    """Every precision that any operation takes or gives."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda tensor: self.found.add(tensor.dtype), (args, kwargs, result)
        )
        return result


def make_muon(
    dtype: torch.dtype = torch.float64, kind: Any = Muon
) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    weights = [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in SHAPES
    ]
    if kind is Muon:
        return weights, Muon(weights, rate=0.01, momentum=0.95, weight_decay=0.1)
    return weights, kind(weights, lr=0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")


def take_steps(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(100 + seed)
        for weight in weights:
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.grad = drawn.to(weight.dtype)
        optimizer.step()


def muon_written_out(weights: list[np.ndarray], gradients: list[list[np.ndarray]]) -> list[np.ndarray]:
    """The algorithm on arrays of float64: singular values are moved by the polynomial, one by one."""
    moments = [np.zeros_like(weight) for weight in weights]
    for given in gradients:
        for i, gradient in enumerate(given):
            moments[i] = 0.95 * moments[i] + 0.05 * gradient
            ahead = 0.05 * gradient + 0.95 * moments[i]
            left, values, right = np.linalg.svd(ahead / np.linalg.norm(ahead), full_matrices=False)
            for _ in range(5):
                values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
            rate = 0.01 * 0.2 * max(gradient.shape) ** 0.5
            weights[i] = weights[i] * (1 - 0.01 * 0.1) - rate * (left * values) @ right
    return weights


def test_steps_are_those_of_the_algorithm_written_out() -> None:
    weights, optimizer = make_muon()
    before = [weight.detach().numpy().copy() for weight in weights]
    gradients = []
    for seed in range(4):
        take_steps(weights, optimizer, range(seed, seed + 1))
        gradients.append([weight.grad.numpy().copy() for weight in weights])  # type: ignore[union-attr]
    for found, expected in zip(weights, muon_written_out(before, gradients), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_steps_are_those_of_torch_up_to_its_rounding() -> None:
    (ours, optimizer), (theirs, other) = make_muon(), make_muon(kind=torch.optim.Muon)
    before = [weight.detach().clone() for weight in ours]
    take_steps(ours, optimizer, range(5))
    take_steps(theirs, other, range(5))
    for found, expected, start in zip(ours, theirs, before, strict=True):
        moved = (expected - start).norm()
        assert (found - expected).norm() < 0.05 * moved


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_no_optimizer_computes_in_half_precision_on_a_cpu(kind: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimizer = Optimizer(model.named_parameters(), OptimizerConfig(kind=kind))  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with DtypesSeen() as seen:
        optimizer.step()
    assert seen.found == {torch.float32}


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    values = torch.linalg.svdvals(
        orthogonalize(torch.randn(shape, generator=torch.Generator().manual_seed(3)))
    )
    assert values.min() > 0.5 and values.max() < 1.3


def test_a_gradient_of_zeros_leaves_zeros() -> None:
    assert torch.equal(orthogonalize(torch.zeros(3, 5)), torch.zeros(3, 5))


@pytest.mark.parametrize(("first", "second"), [(torch.optim.Muon, Muon), (Muon, torch.optim.Muon)])
def test_a_checkpoint_of_either_class_loads_in_the_other(first: Any, second: Any) -> None:
    (weights, optimizer), (again, other) = make_muon(kind=first), make_muon(kind=second)
    take_steps(weights, optimizer, range(3))
    other.load_state_dict(optimizer.state_dict())
    for weight, copy in zip(weights, again, strict=True):
        assert torch.equal(optimizer.state[weight]["momentum_buffer"], other.state[copy]["momentum_buffer"])
    take_steps(again, other, range(3, 4))
    assert other.param_groups[0]["momentum"] == 0.95
