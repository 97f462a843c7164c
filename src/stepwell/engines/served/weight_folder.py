"""New weights as a directory that inference servers load: written, read back, and the old ones removed.

Invariants
* A folder holds one version and is complete before a server is told of it. What was read back has the
  fingerprint of what was written.
* The last two versions stay, so that a server that is late still finds its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from stepwell.core.errors import WeightsError
from stepwell.engines.weights import drop_tied_heads, fingerprint_of, read_weights
from stepwell.policies.directory import copy_side_files
from stepwell.policies.progress_bar import hide_progress_bar

_NUM_KEPT = 2


Rename = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Gives weights the names that a server reads."""


class WeightFolder:
    """The folder in which one run publishes. `source` is the model's directory, for its tokenizer."""

    def __init__(self, path: Path, source: Path | None = None, rename: Rename | None = None) -> None:
        self.path = path.absolute()
        self._source, self._rename = source, rename
        self._written: list[Path] = []

    def write_model(self, model: Any, label: str) -> tuple[Path, str]:
        """Write the model's weights; their folder and fingerprint."""
        folder = self.path / label
        try:
            folder.mkdir(parents=True)
            self._save_model(model, folder)
            if self._source is not None and self._source.is_dir():
                copy_side_files(self._source, folder)
        except OSError as error:
            raise WeightsError(
                f"the weights cannot be written to {folder} ({error}); engine.server.weights_folder must be "
                "a folder with room that trainer and servers see"
            ) from error
        self._written.append(folder)
        own = model.state_dict()
        written = own if self._rename is None else self._rename(own)
        found = read_weights(folder)
        # some models are saved under other names; their values are checked by the probes alone
        if set(found) <= set(written) and fingerprint_of(found) != fingerprint_of(written):
            raise WeightsError(f"{folder} does not hold what was written; is the disk full or broken?")
        return folder, fingerprint_of(own)

    def _save_model(self, model: Any, folder: Path) -> None:
        with hide_progress_bar():
            if self._rename is None:
                model.save_pretrained(folder)
            else:
                save_renamed(model, folder, self._rename)

    def remove_old(self) -> None:
        """Remove all but the newest versions."""
        while len(self._written) > _NUM_KEPT:
            shutil.rmtree(self._written.pop(0), ignore_errors=True)

    def remove_all(self) -> None:
        """Remove every version."""
        for folder in self._written:
            shutil.rmtree(folder, ignore_errors=True)
        self._written = []
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


def save_renamed(model: Any, folder: Path, rename: Rename) -> None:
    """Write a model's configuration, and its weights in one file under the names that a server reads."""
    from safetensors.torch import save_file

    model.config.architectures = [type(model).__name__]  # as `save_pretrained` does: servers choose by it
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    weights = rename(drop_tied_heads(model.state_dict()))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
