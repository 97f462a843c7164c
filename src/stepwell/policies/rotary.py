"""Rotary frequencies: buffers of a model outside its weights, which no fingerprint of weights covers.

Who runs the same model in several places compares them apart from the weights: exactly within one process,
and within the last bits between processes, because other processors may have computed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # the others depend on the sequence length
ROUNDING = 4 * torch.finfo(torch.float32).eps
"""By how much frequencies that two processors compute may differ, as a share."""


def read_frequencies(model: Any) -> dict[str, torch.Tensor]:
    """The rotary frequencies of a model by name; none if it has none, or if they are not fixed."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if decoder is None or not are_fixed(decoder):
        return {}
    return {name: buffer for name, buffer in decoder.named_buffers() if name.endswith("inv_freq")}


def are_fixed(decoder: Any) -> bool:
    """Whether a decoder's frequencies are the same for sequences of every length."""
    kinds = [getattr(module, "rope_type", "default") for module in decoder.modules()]
    names = [name for kind in kinds for name in (kind.values() if isinstance(kind, dict) else [kind])]
    return all(name in FIXED_ROPE for name in names)


def find_other_frequencies(
    own: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], rounding: float = ROUNDING
) -> str | None:
    """The first name whose frequencies differ; None if all of them agree."""
    for name in sorted(own.keys() & theirs.keys()):
        one, other = own[name], theirs[name].to(own[name].device, own[name].dtype)
        if one.shape != other.shape or not bool(((one - other).abs() <= rounding * other.abs()).all()):
            return name
    return None
