"""Model directories: opening them, with clear errors.

Directories are in Hugging Face format: `config.json`, safetensors, and the tokenizer's files
unchanged. Additional files, which Hugging Face ignores, hold what its format has no place for:

    stepwell_policy.json             format, kind of critic, its link, whether instructions have a critic
    value_head.safetensors           the critic's head
    critic/                          the backbone of an own critic, a model directory itself
    instruction_head.safetensors     as above, of the critic of instructions
    instruction_critic/

With LoRA the directory contains adapters in PEFT's format and names its base model. A
directory appears under its name only when it is complete (`atomic_directory.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

from stepwell.core import ModelError
from stepwell.core.text import take_first_line
from stepwell.policies.model_resolver import ADAPTER_FILE, resolve_model, suggest_checkpoint
from stepwell.policies.progress_bar import hide_progress_bar

POLICY_FILE = "stepwell_policy.json"
CRITIC_FILES = {
    "critic": ("value_head.safetensors", "critic"),
    "instruction_critic": ("instruction_head.safetensors", "instruction_critic"),
}
"""Head file and backbone folder of each critic of a policy, by the critic's name in `state_dict`."""
FORMAT = 1
_NO_CRITIC = {"format": FORMAT, "critic": None, "critic_link": None, "instruction_critic": False}

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".safetensors.index.json")
_WRITTEN = ("config.json", "generation_config.json", ADAPTER_FILE, POLICY_FILE, "README.md", "stepwell.json")
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def locate_model(name_or_path: str | Path) -> Path:
    """Return the directory of a model, given by path or by built-in name."""
    path = Path(name_or_path)
    if not path.is_dir():
        path = Path(resolve_model(str(name_or_path)))
    if not (path / "config.json").is_file() and not (path / ADAPTER_FILE).is_file():
        raise ModelError(
            f"{path} is not a model directory: it has no config.json; {suggest_checkpoint(path)}, "
            "or the name of a built-in model"
        )
    return path


def open_causal_lm(path: Path, dtype: torch.dtype) -> Any:
    """Open the causal language model in `path`; an error if any weight is missing or has another shape."""
    with raise_model_error(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    # SDPA silently ignores a softcap on attention scores; the model's own code does not
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return _open_checked(AutoModelForCausalLM, path, dtype, attn_implementation="eager" if capped else None)


def open_vision_language(path: Path, dtype: torch.dtype) -> Any:
    """Open the vision-language model in `path`; an error if any weight is missing or has another shape."""
    return _open_checked(AutoModelForImageTextToText, path, dtype)


def open_backbone(path: Path, dtype: torch.dtype) -> Any:
    """Open the backbone of an own critic."""
    return _open_checked(AutoModel, path, dtype)


def _open_checked(kind: Any, path: Path, dtype: torch.dtype, **options: Any) -> Any:
    with raise_model_error(path), hide_progress_bar():
        model, report = kind.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise ModelError(
            f"{path} is incomplete: {len(missing)} weights are missing or have another shape "
            f"(first: {missing[0]}). Its files are truncated or from different models; save the model again"
        )
    return model


@contextmanager
def raise_model_error(path: Path) -> Iterator[None]:
    """Turn any error of a damaged file into a `ModelError` that names the directory."""
    try:
        yield
    except _BROKEN as error:
        raise ModelError(
            f"{path} cannot be opened as a Hugging Face language model: {take_first_line(error)}. "
            "Check that the directory is complete, or save the model again"
        ) from error


def read_policy_file(path: Path) -> dict[str, Any]:
    """Read the file that Stepwell wrote beside the model; defaults for a plain Hugging Face directory."""
    file = path / POLICY_FILE
    if not file.is_file():
        return dict(_NO_CRITIC)
    with raise_model_error(path):
        content: dict[str, Any] = json.loads(file.read_text())
        if content["format"] != FORMAT or content["critic"] not in (None, "shared", "own"):
            raise ValueError(f"{POLICY_FILE} has an unknown format")
        if content.get("critic_link") not in (None, "identity", "logit"):
            raise ValueError(f"{POLICY_FILE} names an unknown critic_link")
    return _NO_CRITIC | content  # older directories do not say their link


def read_head(path: Path, critic: str) -> dict[str, torch.Tensor]:
    """Read the saved value head of a critic."""
    with raise_model_error(path):
        return load_file(path / CRITIC_FILES[critic][0])


def write_critic(
    path: Path,
    critic: str,
    head: dict[str, torch.Tensor],
    backbone: Any | None,
    weights: dict[str, torch.Tensor] | None,
) -> None:
    """Write a critic's files into a directory; `weights` are those of its backbone."""
    head_file, folder = CRITIC_FILES[critic]
    save_file({name: tensor.contiguous() for name, tensor in head.items()}, path / head_file)
    if backbone is not None:
        backbone.save_pretrained(path / folder, state_dict=None if weights is None else dict(weights))


def write_policy_file(path: Path, content: dict[str, Any]) -> None:
    """Write the file beside the model that says which critics there are."""
    (path / POLICY_FILE).write_text(json.dumps({"format": FORMAT, **content}, indent=2) + "\n")


def copy_side_files(source: Path, target: Path) -> None:
    """Copy tokenizer, chat template and everything else that belongs to the model except its weights."""
    for file in sorted(source.iterdir()):
        is_ours = file.name in _WRITTEN or file.name.endswith(_WEIGHTS)
        if file.is_file() and not is_ours and not (target / file.name).exists():
            shutil.copy2(file, target / file.name)
