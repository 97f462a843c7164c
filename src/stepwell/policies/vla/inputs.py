"""A packed microbatch, or the states of some requests, as tensors on the model's device.

Copies of a microbatch are kept in its cache: the passes of an update read the same states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.core import ArrayState
from stepwell.core.arrays import AnyArray
from stepwell.packing import ArrayMicrobatch
from stepwell.packing.arrays import stack_states
from stepwell.policies.vla.encoder import instruction_ids
from stepwell.policies.vla.heads import Actions
from stepwell.policies.vla.model import VLAModel


@dataclass(frozen=True, slots=True)
class Fed:
    """One microbatch on its device."""

    arrays: dict[str, Tensor]
    instructions: Tensor
    rows: Tensor
    acting: Tensor
    actions: Actions
    num_values: Tensor


def fed(microbatch: ArrayMicrobatch, model: VLAModel) -> Fed:
    """The microbatch's tensors, made when first asked for."""
    key = (model.device, model.dtype)
    if key not in microbatch.cache:
        microbatch.cache[key] = _fed(microbatch, model)
    found: Fed = microbatch.cache[key]
    return found


def feed_states(states: Sequence[ArrayState], model: VLAModel) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """What `VLAModel.encode` takes, of states that nobody packed."""
    arrays = stack_states(states)
    model.encoder.check(arrays)
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(state.instruction, len(numbers)) for state in states]
    device = model.device
    return (
        {name: _tensor(array, device) for name, array in arrays.items()},
        _tensor(instruction_ids(list(numbers)), device),
        torch.tensor(rows, device=device),
    )


def _fed(microbatch: ArrayMicrobatch, model: VLAModel) -> Fed:
    device, dtype = model.device, model.dtype
    drawn = microbatch.draws
    draws = None if drawn is None else _tensor(drawn, device)
    return Fed(
        arrays={name: _tensor(array, device) for name, array in microbatch.arrays.items()},
        instructions=_tensor(instruction_ids(microbatch.instructions), device),
        rows=_tensor(microbatch.instruction_rows, device),
        acting=_tensor(microbatch.acting, device),
        actions=Actions(
            kind=microbatch.kind,
            chunks=_tensor(microbatch.chunks, device).to(dtype),
            draws=draws.to(dtype) if draws is not None and draws.is_floating_point() else draws,
            num_actions=_tensor(microbatch.num_actions, device),
            temperatures=_tensor(microbatch.temperatures, device).to(dtype),
            seeds=microbatch.seeds,
        ),
        num_values=_tensor(microbatch.action_lengths + 1, device),
    )


def _tensor(array: AnyArray, device: torch.device) -> Tensor:
    """Read-only arrays are copied: torch would warn that they could be written through."""
    writable = array if array.flags.writeable else np.array(array)
    return torch.from_numpy(np.ascontiguousarray(writable)).to(device)
