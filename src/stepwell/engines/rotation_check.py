"""The rotation check: what the engine derives from positions is what the trainer's model derives from them.

Frequencies are buffers outside the weights, and `LlamaForward` keeps tables of them: the fingerprint of the
weights covers neither. Here both are compared, frequencies exactly and tables within one rounding of their
dtype, because devices differ in the last bit of a cosine. Models whose frequencies depend on the length of a
sequence are not compared.
"""

from __future__ import annotations

from typing import Any

import torch

from stepwell.core.errors import WeightsError
from stepwell.engines.forward import FIXED_ROPE, ForwardPass, Rotation

_ADVICE = 'it reads positions wrongly. Start again; if this repeats, set engine.forward to "transformers"'


def check_rotation(forward: ForwardPass, engine_model: Any, trainer_model: Any, num_positions: int) -> None:
    """Refuse an engine that rotates queries and keys otherwise than the trainer's model."""
    own, theirs = engine_model.get_decoder(), trainer_model.get_decoder()
    if not _is_fixed(own):
        return
    _compare_frequencies(_read_frequencies(own), _read_frequencies(theirs))
    tables = forward.read_tables()
    if tables is not None and (rotary := getattr(theirs, "rotary_emb", None)) is not None:
        _compare_tables(tables, rotary, num_positions)


def _is_fixed(decoder: Any) -> bool:
    kinds = [getattr(module, "rope_type", "default") for module in decoder.modules()]
    names = [name for kind in kinds for name in (kind.values() if isinstance(kind, dict) else [kind])]
    return all(name in FIXED_ROPE for name in names)


def _read_frequencies(decoder: Any) -> dict[str, torch.Tensor]:
    return {name: buffer for name, buffer in decoder.named_buffers() if name.endswith("inv_freq")}


def _compare_frequencies(engine: dict[str, torch.Tensor], trainer: dict[str, torch.Tensor]) -> None:
    for name in engine.keys() & trainer.keys():
        own, theirs = engine[name], trainer[name]
        if own.shape != theirs.shape or not torch.equal(own, theirs.to(own.device, own.dtype)):
            raise WeightsError(f"the engine's rotary frequencies {name} are not the trainer's: {_ADVICE}")


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
