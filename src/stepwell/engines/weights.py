"""Versioned weights: an exact fingerprint, and loading that is all or nothing.

The fingerprint of a set of tensors is the same wherever it is computed, by the trainer or
by the engine, on CPU or GPU. Every tensor's bytes are read as 64-bit words, each word is
mixed with its place, and the wrapped sum goes with the tensor's name, dtype and shape into
one BLAKE2b digest. Equal weights have equal fingerprints; a swapped, missing or changed
element changes it.

A tied output head is the input embedding under a second name, and some files and state
dicts list it while others do not. An output head that equals another tensor is therefore
left out of the fingerprint, and may be missing if the model ties it.

`check_weights` checks everything before anything is changed, so that the old weights stay
in place if it refuses the new ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from stepwell.core.errors import WeightsError

_CHUNK = 1 << 22  # words mixed at a time: bounds the scratch memory
_CPU_CHUNK = 1 << 18  # scratch memory that is reused, not mapped again: twice as fast
_MIX_1 = -0x61C8864680B583EB  # odd 64-bit constants, written as the signed numbers they wrap to
_MIX_2 = -0x40A7B892E31B1A47
_HEAD = "lm_head.weight"


def fingerprint_of(state_dict: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> str:
    """Compute the fingerprint of named tensors, cast to `dtype` if one is given.

    A trainer that keeps float32 weights for an engine that runs in bfloat16 publishes
    `fingerprint_of(state_dict, torch.bfloat16)`.
    """
    return digest_marks(compute_marks(state_dict, dtype))


def compute_marks(state_dict: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> dict[str, str]:
    """A short text per tensor that tells its dtype, shape and contents: equal tensors have equal marks."""
    names = sorted(state_dict)
    tensors = [_cast_tensor(state_dict[name].detach(), dtype) for name in names]
    sums = _read_together([_compute_checksum(tensor) for tensor in tensors])
    return {
        name: f"{tensor.dtype}{tuple(tensor.shape)}{value}"
        for name, tensor, value in zip(names, tensors, sums, strict=True)
    }


def digest_marks(marks: Mapping[str, str]) -> str:
    """The fingerprint of tensors with these marks."""
    digest, listed = hashlib.blake2b(digest_size=16), list(marks.values())
    for name in sorted(marks):
        if name.endswith(_HEAD) and listed.count(marks[name]) > 1:
            continue
        digest.update(f"{name}={marks[name]};".encode())
    return digest.hexdigest()


def is_head(name: str) -> bool:
    """Whether this is the name of an output head, which may be tied to the input embedding."""
    return name.endswith(_HEAD)


def drop_tied_heads(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors without an output head that is another of them under a second name."""
    kept = {name: tensor for name, tensor in weights.items() if not name.endswith(_HEAD)}
    places = {(tensor.data_ptr(), tensor.shape) for tensor in kept.values()}
    heads = {name: tensor for name, tensor in weights.items() if name.endswith(_HEAD)}
    return kept | {n: head for n, head in heads.items() if (head.data_ptr(), head.shape) not in places}


def _read_together(sums: list[torch.Tensor]) -> list[int]:
    """Read numbers of one device at once: on a GPU each single read would wait for the device."""
    if len({value.device for value in sums}) == 1:
        return [int(value) for value in torch.stack(sums).tolist()]
    return [int(value) for value in sums]


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _compute_checksum(tensor: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start, words in _iterate_words(tensor):
        place = torch.arange(start, start + len(words), device=tensor.device)
        mixed = (words ^ (place * _MIX_1)) * _MIX_2
        mixed = (mixed ^ (mixed >> 29)) * _MIX_1
        total += (mixed ^ (mixed >> 32)).sum()
    return total


def _iterate_words(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the tensor's bytes as int64 words, chunk by chunk; the last word is padded with zeros."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = len(raw) // 8
    words = raw[: whole * 8].view(torch.int64)
    size = _CPU_CHUNK if raw.device.type == "cpu" else _CHUNK
    for start in range(0, whole, size):
        yield start, words[start : start + size]
    if len(raw) % 8:
        last = torch.zeros(8, dtype=torch.uint8, device=raw.device)
        last[: len(raw) % 8] = raw[whole * 8 :]
        yield whole, last.view(torch.int64)


def read_weights(source: Mapping[str, torch.Tensor] | str | Path) -> dict[str, torch.Tensor]:
    """Read named tensors from a state dict or from a directory of safetensors files."""
    if isinstance(source, Mapping):
        return dict(source)
    directory = Path(source)
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise WeightsError(f"{index} is damaged ({error!r}); publish the weights again") from error
        found = {}
        for name in sorted(set(listed.values())):
            found.update(_read_file(directory / name))
        missing = sorted(set(listed) - set(found))
        if missing:
            raise WeightsError(
                f"{directory}: {missing[0]} and {len(missing) - 1} more tensors of the index are missing"
            )
        return found
    return _read_file(directory / "model.safetensors")


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise WeightsError(f"{path} does not exist; give a directory that contains model.safetensors")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path} is damaged or cut short ({error}); publish the weights again") from error
    return tensors


def check_version(version: int, newest: int) -> None:
    """Refuse weights older than the engine's `newest`."""
    if version < newest:
        raise WeightsError(f"version {version} is older than the engine's {newest}; versions only increase")


def read_version(
    model: Any,
    version: int,
    newest: int,
    source: Mapping[str, torch.Tensor] | str | Path,
    fingerprint: str | None,
) -> dict[str, torch.Tensor]:
    """Return the tensors of a new version to copy into the model; or raise `WeightsError`.

    With `fingerprint` the new weights (in the engine's dtype) must match it.
    """
    check_version(version, newest)
    ready = check_weights(model, read_weights(source))
    if fingerprint is not None and (found := fingerprint_of(ready)) != fingerprint:
        dtype = next(iter(ready.values())).dtype
        raise WeightsError(
            f"version {version} was published with fingerprint {fingerprint}, but these weights have "
            f"{found}; cast them to the engine's dtype ({dtype}) before fingerprinting"
        )
    return ready


def check_weights(
    model: Any, new: Mapping[str, torch.Tensor], *, is_partial: bool = False
) -> dict[str, torch.Tensor]:
    """Return the tensors to copy into the model, by name, in its dtypes; or raise `WeightsError`.

    With `is_partial` tensors may be missing: the model keeps its own.
    """
    own: dict[str, torch.Tensor] = model.state_dict()
    tied = {name for name in own if name.endswith(_HEAD) and model.config.tie_word_embeddings}
    missing = [] if is_partial else sorted(set(own) - set(new) - tied)
    unexpected = sorted(set(new) - set(own))
    if missing or unexpected:
        raise WeightsError(
            f"these weights belong to another model: {len(missing)} names are missing {missing[:3]}, "
            f"{len(unexpected)} are unexpected {unexpected[:3]}"
        )
    ready = {}
    for name, tensor in new.items():
        target = own[name]
        if tensor.shape != target.shape:
            raise WeightsError(f"{name} has shape {tuple(tensor.shape)}, the model {tuple(target.shape)}")
        if tensor.is_floating_point() != target.is_floating_point():
            raise WeightsError(f"{name} is {tensor.dtype}, the model's is {target.dtype}")
        ready[name] = tensor.detach().to(target.dtype)
    _check_tied(ready, own, tied)
    _check_finite(ready)
    return ready


def _check_tied(ready: dict[str, torch.Tensor], own: Mapping[str, torch.Tensor], tied: set[str]) -> None:
    """Check that a listed tied head equals the tensor it is tied to, and drop it: copying is redundant."""
    for name in tied & set(ready):
        same = [n for n in own if n != name and own[n].data_ptr() == own[name].data_ptr()]
        if same and not torch.equal(ready[name], ready.get(same[0], own[same[0]]).to(ready[name].device)):
            raise WeightsError(f"{name} and {same[0]} are tied in this model, but the new weights differ")
        if same:
            del ready[name]


def _check_finite(ready: Mapping[str, torch.Tensor]) -> None:
    """Refuse NaN and infinity. All flags are read together: single reads would wait for the GPU."""
    floating = {name: tensor for name, tensor in ready.items() if tensor.is_floating_point()}
    flags = [torch.isfinite(tensor).all() for tensor in floating.values()]
    if not flags:
        return
    devices = {flag.device for flag in flags}
    good = torch.stack(flags) if len(devices) == 1 else torch.stack([flag.cpu() for flag in flags])
    if not bool(good.all()):
        bad = [name for name, fine in zip(floating, good.tolist(), strict=True) if not fine]
        raise WeightsError(f"{bad[0]} holds NaN or infinity ({len(bad)} of {len(ready)} tensors do)")


def copy_weights(model: Any, ready: Mapping[str, torch.Tensor]) -> None:
    """Copy checked tensors into the model, in place: captured graphs use their addresses."""
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in ready.items():
            own[name].copy_(tensor)
