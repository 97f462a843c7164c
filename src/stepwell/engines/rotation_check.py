"""The rotation check: what the engine derives from positions is what the trainer's model derives from them.

Frequencies are buffers outside the weights, and `LlamaForward` keeps tables of them: the fingerprint of the
weights covers neither. Here both are compared, frequencies exactly and tables within one rounding of their
dtype, because devices differ in the last bit of a cosine. An engine in another process is sent the trainer's
frequencies, and may differ from them in the last bits too, because another processor may have computed them.
Models whose frequencies depend on the length of a sequence are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stepwell.core.errors import WeightsError
from stepwell.engines.forward import ForwardPass, Rotation
from stepwell.policies.rotary import ROUNDING, are_fixed, find_other_frequencies, read_frequencies

_ADVICE = 'it reads positions wrongly. Start again; if this repeats, set engine.forward to "transformers"'


def check_rotation(forward: ForwardPass, engine_model: Any, trainer_model: Any, num_positions: int) -> None:
    """Refuse an engine that rotates queries and keys otherwise than the trainer's model."""
    if not are_fixed(engine_model.get_decoder()):
        return
    _compare_frequencies(engine_model, read_frequencies(trainer_model), rounding=0.0)
    tables = forward.read_tables()
    if tables is not None and (rotary := _find_rotary(trainer_model)) is not None:
        _compare_tables(tables, rotary, num_positions)


def compare_frequencies(engine_model: Any, frequencies: Mapping[str, torch.Tensor]) -> None:
    """Refuse an engine whose frequencies are not those that the trainer's process has sent."""
    _compare_frequencies(engine_model, frequencies, ROUNDING)


def _compare_frequencies(model: Any, trainer: Mapping[str, torch.Tensor], rounding: float) -> None:
    name = find_other_frequencies(read_frequencies(model), trainer, rounding)
    if name is not None:
        raise WeightsError(f"the engine's rotary frequencies {name} are not the trainer's: {_ADVICE}")


def _find_rotary(model: Any) -> Any:
    return getattr(model.get_decoder(), "rotary_emb", None)


def _compare_tables(tables: Rotation, rotary: Any, num_positions: int) -> None:
    device, dtype = rotary.inv_freq.device, tables.cos.dtype
    like = torch.empty(1, dtype=dtype, device=device)
    with torch.no_grad():
        expected = Rotation.from_module(rotary, num_positions, like)
    gaps = []
    for name in ("cos", "sin", "signed_sin"):
        found = getattr(tables, name)[:num_positions]
        gaps.append((found - getattr(expected, name).to(found.device)).abs().amax(dim=1))
    # one element is at most 1, except where a model scales its tables
    scale = max(1.0, float(getattr(rotary, "attention_scaling", 1.0)))
    wrong = ~(torch.stack(gaps).amax(dim=0) <= 2 * scale * torch.finfo(dtype).eps)
    if wrong.any():
        first = int(wrong.nonzero()[0, 0])
        raise WeightsError(
            f"the engine rotates queries and keys at {int(wrong.sum())} of {num_positions} positions "
            f"(from {first} on) by other angles than the trainer's model: {_ADVICE}"
        )
