"""Opens the tokenizer of a directory, with errors that say what is wrong and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stepwell.core.errors import ModelError

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(path: str | os.PathLike[str]) -> Any:
    """Open the tokenizer of a model directory. Reads local files only."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise ModelError(
            f"tokenizer directory {directory} does not exist; give a Hugging Face model directory"
        )
    if not any((directory / name).is_file() for name in _FILES):
        raise ModelError(
            f"{directory} holds no tokenizer ({', '.join(_FILES)}); "
            "save it there with tokenizer.save_pretrained"
        )
    _check_json(directory)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the loaders behind it raise bare Exception on damaged files
        raise ModelError(
            f"the tokenizer in {directory} cannot be opened ({error}); copy or save it again"
        ) from error


def _check_json(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        file = directory / name
        if not file.is_file():
            continue
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(f"{file} is damaged ({error}); copy or save the tokenizer again") from error
