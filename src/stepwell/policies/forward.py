"""One forward pass over a microbatch: logits and hidden states only where they are needed.

The layout of the tree is an argument of the forward call, so that recomputation under
gradient checkpointing gets it too. On CUDA, tokens are padded to whole blocks; the padding
forms separate trees whose outputs are not used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stepwell.core import ModelError
from stepwell.packing import Microbatch, TreeLayout
from stepwell.packing.device_copies import NumberTable, copy_to_device
from stepwell.packing.flex import round_up_length


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """A microbatch on a device: the arguments of the forward call, and which outputs to read.

    `logit_sites` are the places of hidden states from which logits are computed. A model that computes logits
    itself does so for whole columns; `logit_places` picks the wanted ones from
    [rows * columns, vocab] (None: all are wanted, in order). `embed` computes the embeddings
    with a given model if some ids are replaced by something else (images).
    """

    arguments: dict[str, Any]
    logit_sites: Tensor
    columns: Tensor
    logit_places: Tensor | None
    inverse_temperatures: Tensor
    logit_rows: Tensor
    targets: Tensor
    value_places: Tensor
    value_rows: Tensor
    embed: Callable[[Any, Tensor], Tensor] | None = None

    def build_arguments(self, model: Any) -> dict[str, Any]:
        """Build the arguments for `model`."""
        if self.embed is None:
            return self.arguments
        inputs = dict(self.arguments)
        return {"inputs_embeds": self.embed(model, inputs.pop("input_ids")), **inputs}


def get_inputs(microbatch: Microbatch, device: torch.device) -> ForwardInputs:
    """Return `microbatch` as inputs on `device`; they are kept with it for the next pass."""
    key = ("inputs", device)
    if key not in microbatch.cache:
        microbatch.cache[key] = _build_inputs(microbatch, device)
    made: ForwardInputs = microbatch.cache[key]
    return made


def _build_inputs(microbatch: Microbatch, device: torch.device) -> ForwardInputs:
    width = microbatch.input_ids.shape[1]
    columns, column = np.unique(microbatch.logit_sites % width, return_inverse=True)
    places = (microbatch.logit_sites // width) * columns.size + column
    is_identity = np.array_equal(places, np.arange(microbatch.input_ids.shape[0] * columns.size))

    arrays = {
        "sites": microbatch.logit_sites, "columns": columns, "rows": microbatch.logit_rows,
        "targets": microbatch.targets, "values": microbatch.value_sites, "value rows": microbatch.value_rows,
        "ids": microbatch.input_ids.ravel(), "places": np.zeros(0) if is_identity else places,
    }  # fmt: skip
    shape, count = microbatch.input_ids.shape, microbatch.num_tokens
    size = round_up_length(count) if device.type == "cuda" else count
    if microbatch.tree is not None:
        shape = (1, size)
        for name, array in (("ids", microbatch.input_ids), ("positions", microbatch.positions)):
            arrays[name] = np.pad(array[0], (0, size - count))
    table = NumberTable({name: len(array) for name, array in arrays.items()}, device, torch.int64)
    table.fill(arrays)
    arguments: dict[str, Any] = {"input_ids": table["ids"].view(shape)}
    if microbatch.tree is not None:
        arguments["position_ids"] = table["positions"][None]
        # all ones: without it transformers looks for packed sequences in the positions
        arguments["attention_mask"] = torch.ones(1, size, dtype=torch.bool, device=device)
        arguments["tree_layout"] = TreeLayout(microbatch.tree, device, size)
    return ForwardInputs(
        arguments=arguments,
        logit_sites=table["sites"],
        columns=table["columns"],
        logit_places=None if is_identity else table["places"],
        inverse_temperatures=copy_to_device(1.0 / microbatch.temperatures, device),
        logit_rows=table["rows"],
        targets=table["targets"],
        value_places=table["values"],
        value_rows=table["value rows"],
    )


class _HiddenStates:
    """Keeps the last hidden states of a backbone during one forward call."""

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone = backbone
        self.states: Tensor | None = None

    def __enter__(self) -> _HiddenStates:
        self.handle = self.backbone.register_forward_hook(self._keep_states)
        return self

    def _keep_states(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self.states = read_hidden_states(output)

    def __exit__(self, *exception: object) -> None:
        self.handle.remove()


def find_backbone(model: Any) -> Any:
    """Return the part of a causal language model that computes hidden states."""
    inner = model.base_model
    if inner is not model:
        return inner
    for child in model.children():  # some classes name a part of another model as their base
        if isinstance(child, PreTrainedModel):
            return child
    raise ModelError(f"{type(model).__name__} has no backbone apart from its head; it cannot have a critic")


def read_hidden_states(output: Any) -> Tensor:
    """Read the hidden states from a backbone's output of any format."""
    states = getattr(output, "last_hidden_state", None)
    result: Tensor = output[0] if states is None else states
    return result


def compute_hidden_states(backbone: nn.Module, inputs: ForwardInputs) -> Tensor:
    """Compute the last hidden states [rows * columns, H] of all places."""
    passes: Any = getattr(backbone, "captured_passes", None)
    can_run = passes is not None and inputs.embed is None
    states: Tensor | None = passes.run(backbone, inputs.arguments) if can_run else None
    if states is None:
        output = backbone(**inputs.build_arguments(backbone), use_cache=False)
        states = read_hidden_states(output).flatten(0, 1)
    return states


def compute_hidden_rows(backbone: nn.Module, inputs: ForwardInputs) -> Tensor:
    """Compute hidden states [M, H] at the value places, with a separate backbone."""
    return compute_hidden_states(backbone, inputs)[inputs.value_places]


def compute_actor_rows(
    model: Any, inputs: ForwardInputs, *, with_hidden: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute logits [R, V] at the logit places, and hidden states [M, H] at the value places if wanted."""
    kind: Any = type(model)
    keep = {"logits_to_keep": inputs.columns} if _keeps_logits(kind) else {}
    with _HiddenStates(find_backbone(model)) if with_hidden else nullcontext() as kept:
        logits = model(**inputs.build_arguments(model), **keep, use_cache=False).logits
    if not keep:
        logits = logits[:, inputs.columns]
    rows = logits.flatten(0, 1)
    if inputs.logit_places is not None:
        rows = rows[inputs.logit_places]
    if kept is None:
        return rows, None
    assert kept.states is not None, "the backbone was not called"
    return rows, kept.states.flatten(0, 1)[inputs.value_places]


@cache
def _keeps_logits(kind: Any) -> bool:
    return "logits_to_keep" in inspect.signature(kind.forward).parameters
