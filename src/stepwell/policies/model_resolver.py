"""Resolves `policy.model` to a directory that can be opened.

It is one of the built-in models (created or converted once, then kept in the cache of
`model_cache.py`), the path of a Hugging Face directory, or an id of the hub (`hub.py`), in this
order. Each is checked before anything heavy is loaded, so that a typo or a truncated file gives
a short error that names the fix, not a stack trace from inside a loader.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from stepwell.core.errors import ModelError
from stepwell.core.names import find_nearest, suggest_file, suggest_name
from stepwell.policies.hub import fetch_model, is_hub_id
from stepwell.policies.model_cache import get_cached_model
from stepwell.policies.smollm2 import SMOLLM2, get_cached_smollm2

TINY_NAMES = ("tiny-0.3m", "tiny-1m", "tiny-5m")
TINY_VLM_NAMES = ("tiny-vlm-0.5m", "tiny-vlm-1.5m")
SMOLLM2_VLM = "smollm2-vlm"
ADAPTER_FILE = "adapter_config.json"
"""File in a directory of LoRA adapters that names their base model."""
KNOWN_MODELS = (*TINY_NAMES, *TINY_VLM_NAMES, SMOLLM2, SMOLLM2_VLM)


def resolve_model(
    name_or_path: str | os.PathLike[str], *, seed: int = 0, revision: str | None = None
) -> Path:
    """Return the directory of a model: an existing one, a built-in model, or one from the hub.

    `seed` chooses the initial weights of a tiny model or of SmolLM2's vision encoder; other models
    ignore it. `revision` is a branch, tag or commit of a hub model.
    """
    text = os.fspath(name_or_path)
    if text in TINY_NAMES:
        return _get_cached_tiny(text, seed)
    if text in TINY_VLM_NAMES:
        return _get_cached_tiny_vlm(text, seed)
    if text == SMOLLM2:
        return get_cached_smollm2()
    if text == SMOLLM2_VLM:
        return _get_cached_smollm2_vlm(seed)
    path = Path(text).expanduser()
    if not path.is_dir():
        if not is_hub_id(text):
            raise ModelError(_describe_unknown_model(text, path))
        path = _fetch_from_hub(text, revision)
    check_model_directory(path)
    return path


def check_model_directory(path: Path) -> None:
    """Raise `ModelError` unless `path` contains a config and complete weight files."""
    config = _read_json_object(path / "config.json")
    if "model_type" not in config:
        raise ModelError(f"{path / 'config.json'} names no model_type; it is not a Hugging Face model config")
    for weights in _list_weight_files(path):
        _check_safetensors(weights)


def _get_cached_tiny(name: str, seed: int) -> Path:
    from stepwell.policies.tiny_models import compute_tiny_digest, create_tiny

    return get_cached_model(
        f"{name}-seed{seed}-{compute_tiny_digest(name)}", lambda folder: create_tiny(name, folder, seed)
    )


def _get_cached_tiny_vlm(name: str, seed: int) -> Path:
    from stepwell.policies.vlm.tiny import compute_tiny_vlm_digest, create_tiny_vlm

    return get_cached_model(
        f"{name}-seed{seed}-{compute_tiny_vlm_digest(name)}",
        lambda folder: create_tiny_vlm(name, folder, seed),
    )


def _get_cached_smollm2_vlm(seed: int) -> Path:
    from stepwell.policies.vlm.smollm2 import build_smollm2_vlm_key, create_smollm2_vlm

    return get_cached_model(build_smollm2_vlm_key(seed), lambda folder: create_smollm2_vlm(folder, seed))


def _fetch_from_hub(model_id: str, revision: str | None) -> Path:
    try:
        return fetch_model(model_id, revision)
    except ModelError as error:
        near = find_nearest(model_id.rpartition("/")[2].removesuffix("-Instruct"), KNOWN_MODELS)
        if not near:
            raise
        raise ModelError(f"{error}. Built in, without a download: policy.model={near[0]}") from error


def _describe_unknown_model(text: str, path: Path) -> str:
    if path.is_file():
        return f"model {text!r} is a file; give the directory that holds config.json"
    guess = suggest_name(text, KNOWN_MODELS) or suggest_file(path) or "."
    return (
        f"model {text!r} is neither a directory nor a built-in name{guess} "
        f"Built-in models: {', '.join(KNOWN_MODELS)}; "
        "models of the Hugging Face hub are written org/name"
    )


def _list_weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = _read_json_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(f"{index} lists no weights; copy the model again")
        return [path / name for name in sorted(set(map(str, shards.values())))]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    adapter = " It holds a LoRA adapter: name its base model." if (path / ADAPTER_FILE).is_file() else ""
    raise ModelError(
        f"model directory {path} has no model.safetensors (nor an index of shards).{adapter} "
        "Save the weights with save_pretrained, which writes safetensors"
    )


def _read_json_object(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"model directory {path.parent} has no {path.name}; {suggest_checkpoint(path.parent)}"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); copy or save the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object; copy or save the model again")
    return value


def suggest_checkpoint(folder: Path) -> str:
    """What to give in place of a folder that holds no model: where it is a run's, its best checkpoint."""
    for best in (folder / "best", folder / "checkpoints" / "best"):
        if (best / "config.json").is_file():
            return f"the policy of this run is {best}"
    return "give a directory written by save_pretrained"


def _check_safetensors(path: Path) -> None:
    """Compare a file's length with its header, without reading the weights."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as handle:
            (header_size,) = struct.unpack("<Q", handle.read(8))
            if header_size > size:
                raise ValueError("its header is truncated")
            header = json.loads(handle.read(header_size))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + header_size + max(ends, default=0)
    except FileNotFoundError:
        raise ModelError(f"weight file {path} is missing; copy or save the model again") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"weight file {path} is damaged ({error}); copy or save the model again") from error
    if size != expected:
        raise ModelError(
            f"weight file {path} has {size} bytes, but its header says {expected}: "
            "it was truncated or overwritten; copy or save the model again"
        )
