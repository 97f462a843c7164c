"""Detects how a model directory represents images, from its own files.

`config.json` names the family and the placeholder's id. `preprocessor_config.json` (or the image processor's
part of `processor_config.json`) defines the pixel preprocessing. The tokenizer defines the marker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.core.errors import ModelError
from stepwell.rendering.tokenizer_loader import load_tokenizer
from stepwell.rendering.vision.format import ImageFormat
from stepwell.rendering.vision.idefics import IdeficsFormat
from stepwell.rendering.vision.llava import LlavaFormat
from stepwell.rendering.vision.qwen import QwenFormat

FAMILIES: dict[str, type[ImageFormat]] = {
    "llava": LlavaFormat,
    "qwen2_vl": QwenFormat,
    "qwen2_5_vl": QwenFormat,
    "idefics3": IdeficsFormat,
    "smolvlm": IdeficsFormat,
}
"""Image formats by the `model_type` of config.json."""


def is_vision_language(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a vision-language model, of a supported family or not."""
    file = Path(path).expanduser() / "config.json"
    return file.is_file() and "vision_config" in _read_json(file)


def load_image_format(path: str | os.PathLike[str], tokenizer: Any | None = None) -> ImageFormat | None:
    """The image format of the model in `path`; None for a text model.

    Pass `tokenizer` to avoid opening the directory's tokenizer again.
    """
    directory = Path(path).expanduser()
    if not is_vision_language(directory):
        return None
    config = _read_json(directory / "config.json")
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise ModelError(
            f"{directory} is a vision-language model of type {config.get('model_type')!r}; "
            f"supported types: {', '.join(FAMILIES)}"
        )
    tokenizer = tokenizer or load_tokenizer(directory)
    marker_id = config.get("image_token_id", config.get("image_token_index"))
    if not isinstance(marker_id, int):
        raise ModelError(f"{directory / 'config.json'} names no image_token_id; save the model again")
    marker = str(tokenizer.convert_ids_to_tokens(marker_id))
    settings = _read_settings(directory)
    if family is IdeficsFormat:

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        return IdeficsFormat(marker, marker_id, config, settings, encode)
    made: Any = family
    return made(marker, marker_id, config, settings)  # type: ignore[no-any-return]


def _read_settings(directory: Path) -> Mapping[str, Any]:
    """The directory's image processor settings."""
    file = directory / "preprocessor_config.json"
    if file.is_file():
        return _read_json(file)
    file = directory / "processor_config.json"
    inner = _read_json(file).get("image_processor") if file.is_file() else None
    if not isinstance(inner, Mapping):
        raise ModelError(
            f"{directory} does not say how its images are prepared: preprocessor_config.json is missing; "
            "copy that file from the original model"
        )
    return inner


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is damaged ({error}); copy or save the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} does not hold a JSON object; copy or save the model again")
    return value
