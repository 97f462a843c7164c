"""Tensors on the model's device, from a packed microbatch or from the states of requests.

The tensors are kept in the microbatch's cache, because every pass of an update reads the same states.
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
from stepwell.policies.vla.encoder import encode_instructions
from stepwell.policies.vla.heads import ScoredActions
from stepwell.policies.vla.model import VLAModel


@dataclass(frozen=True, slots=True)
class VLAInputs:
    """One microbatch on its device."""

    arrays: dict[str, Tensor]
    instructions: Tensor
    rows: Tensor
    acting: Tensor
    actions: ScoredActions
    num_values: Tensor


def get_inputs(microbatch: ArrayMicrobatch, model: VLAModel) -> VLAInputs:
    """Return the tensors of the microbatch; they are created on first use."""
    key = (model.device, model.dtype)
    if key not in microbatch.cache:
        microbatch.cache[key] = _build_inputs(microbatch, model)
    found: VLAInputs = microbatch.cache[key]
    return found


def stack_inputs(states: Sequence[ArrayState], model: VLAModel) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Stack unpacked states into the arguments of `VLAModel.encode`."""
    arrays = stack_states(states)
    model.encoder.check_arrays(arrays)
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(state.instruction, len(numbers)) for state in states]
    device = model.device
    return (
        {name: _to_tensor(array, device) for name, array in arrays.items()},
        _to_tensor(encode_instructions(list(numbers)), device),
        torch.tensor(rows, device=device),
    )


def _build_inputs(microbatch: ArrayMicrobatch, model: VLAModel) -> VLAInputs:
    device, dtype = model.device, model.dtype
    drawn = microbatch.draws
    draws = None if drawn is None else _to_tensor(drawn, device)
    return VLAInputs(
        arrays={name: _to_tensor(array, device) for name, array in microbatch.arrays.items()},
        instructions=_to_tensor(encode_instructions(microbatch.instructions), device),
        rows=_to_tensor(microbatch.instruction_rows, device),
        acting=_to_tensor(microbatch.acting, device),
        actions=ScoredActions(
            kind=microbatch.kind,
            chunks=_to_tensor(microbatch.chunks, device).to(dtype),
            draws=draws.to(dtype) if draws is not None and draws.is_floating_point() else draws,
            num_actions=_to_tensor(microbatch.num_actions, device),
            temperatures=_to_tensor(microbatch.temperatures, device).to(dtype),
            seeds=microbatch.seeds,
        ),
        num_values=_to_tensor(microbatch.action_lengths + 1, device),
    )


def _to_tensor(array: AnyArray, device: torch.device) -> Tensor:
    """Convert an array. Read-only arrays are copied, because torch warns about sharing their memory."""
    writable = array if array.flags.writeable else np.array(array)
    return torch.from_numpy(np.ascontiguousarray(writable)).to(device)
