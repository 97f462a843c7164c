"""The size of a model, read from the headers of its files, or from its outline, without loading it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPES = "shapes.json"  # of an outline


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a model in numbers."""

    num_parameters: int
    num_linear: int
    num_hidden_matrices: int
    layers: int
    width: int
    mlp_width: int
    kv_width: int
    vocabulary: int
    query_width: int = 0

    @classmethod
    def read(cls, path: Path, rank: int = 0) -> ModelSize:
        """From its config and the headers of its safetensors, or an outline; `rank` is that of adapters."""
        shapes = dict(_read_shapes(path))
        config = json.loads((path / "config.json").read_text())
        text: Mapping[str, Any] = config.get("text_config", config)
        heads = int(text["num_attention_heads"])
        head_dim = int(text.get("head_dim") or text["hidden_size"] // heads)
        matrices = [
            shape
            for name, shape in shapes.items()
            if len(shape) == 2 and not any(word in name for word in ("embed", "lm_head"))
        ]
        return cls(
            num_parameters=sum(math.prod(shape) for shape in shapes.values()),
            num_linear=sum(rank * sum(shape) for shape in matrices),
            num_hidden_matrices=sum(math.prod(shape) for shape in matrices),
            layers=int(text["num_hidden_layers"]),
            width=int(text["hidden_size"]),
            mlp_width=int(text.get("intermediate_size") or 4 * text["hidden_size"]),
            kv_width=int(text.get("num_key_value_heads") or heads) * head_dim,
            vocabulary=int(text["vocab_size"]),
            query_width=heads * head_dim,
        )


def _read_shapes(path: Path) -> Iterator[tuple[str, list[int]]]:
    if (path / SHAPES).is_file():
        yield from json.loads((path / SHAPES).read_text()).items()
        return
    from safetensors import safe_open

    for file in sorted(path.glob("*.safetensors")):
        if file.name.startswith(("model", "pytorch_model")):
            with safe_open(file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a mapping)
                    yield name, opened.get_slice(name).get_shape()
