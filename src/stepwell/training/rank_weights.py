"""The weights of a policy as its ranks share them: all of them, their gradients, their fingerprint."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.training.policy import Policy
from stepwell.training.rank_link import RankCollectives

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def list_weights(policy: Policy) -> list[Tensor]:
    """Everything that outputs depend on: actor, critic and reference, with their buffers."""
    weights = list(policy.state_dict().values())
    if policy.reference is not None:
        weights += policy.reference.state_dict().values()
    return weights


def copy_frozen(model: Any) -> Any:
    """A reference: what is not trained."""
    return copy.deepcopy(model).requires_grad_(False)


def add_gradients(wire: RankCollectives, parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients of all ranks at rank 0. Who has none anywhere keeps none: no optimizer moves it."""
    has_any = wire.reduce_any([parameter.grad is not None for parameter in parameters], parameters[0].device)
    moved = [parameter for parameter, has_one in zip(parameters, has_any, strict=True) if has_one]
    for parameter in moved:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    wire.sum_to_first([parameter.grad for parameter in moved])  # type: ignore[misc]


def compute_fingerprint(policy: Policy) -> int:
    """Of every weight's bits: sums of integers, so that neither device nor threads change it."""
    total = 0
    for number, weight in enumerate(list_weights(policy)):
        bits = weight.detach().contiguous().view(_AS_INTEGERS[weight.element_size()])
        total += (number + 1) * int(bits.sum(dtype=torch.int64))
    return total % (1 << 61)
