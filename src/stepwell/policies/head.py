"""Finds the head of a causal language model, if its logits are one linear map of the hidden states.

Then scores are computed from hidden states without all logits in memory (`packing/projection.py`). Some
models change their logits afterwards (a soft cap, a scale), and adapters may sit on the head. There is no
list of them: a probe compares the logits of the model with those of the bare head on a few tokens, once per
model.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from stepwell.policies.forward import find_backbone, read_hidden_states

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
_found: WeakKeyDictionary[nn.Module, nn.Linear | None] = WeakKeyDictionary()


def find_plain_head(model: Any) -> nn.Linear | None:
    """The linear map from the last hidden states to the logits, or None if there is more to it."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None
    if model not in _found or _found[model] not in (None, head):
        _found[model] = head if _computes_logits(model, head) else None
    return _found[model]


@torch.no_grad()
def _computes_logits(model: Any, head: nn.Linear) -> bool:
    ids = torch.arange(1, 4, device=head.weight.device)[None] % model.get_input_embeddings().num_embeddings
    try:
        logits = model(input_ids=ids, use_cache=False).logits
        states = read_hidden_states(find_backbone(model)(input_ids=ids, use_cache=False))
    except (TypeError, ValueError, RuntimeError):  # a model with other inputs keeps its own way to logits
        return False
    ours = head(states)
    limit = _TOLERANCE.get(ours.dtype, 1e-2) * float(logits.abs().max())
    return ours.shape == logits.shape and float((ours - logits).abs().max()) <= limit
