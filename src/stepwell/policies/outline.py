"""A built-in model without its weights: all that planning a run needs, without torch and transformers.

An outline is a directory like that of the model, with `shapes.json` in place of weights. A plan then takes a
second, also where the model was never built. Tests compare plans made from both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHAPES = "shapes.json"
VERSION = 1  # increased when outlines change, so that older ones are not reused


@dataclass(frozen=True, slots=True)
class Outline:
    """`core` is a tokenizer of package `tokenizers`, `files` are further JSON files by name."""

    core: Any
    special: Mapping[str, str]
    template: str
    config: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)

    def build_tokenizer(self) -> Any:
        """The tokenizer as `transformers` opens it."""
        from transformers import PreTrainedTokenizerFast

        text = self.config.get("text_config", self.config)
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=self.core,
            **self.special,
            model_max_length=text["max_position_embeddings"],
            clean_up_tokenization_spaces=False,
            chat_template=self.template,
        )

    def write(self, directory: Path) -> None:
        """Write the directory."""
        self.core.save(str(directory / "tokenizer.json"))
        (directory / "chat_template.jinja").write_text(self.template, encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special}
        made = {"tokenizer_config.json": settings, "config.json": self.config}
        write_json_files(directory, {**made, SHAPES: dict(list_shapes(self.config)), **self.files})


def write_json_files(directory: Path, files: Mapping[str, Any]) -> None:
    """Write each content under its name."""
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def list_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The parameters of a Llama, a Qwen3, or a LLaVA around one, by name."""
    text = config.get("text_config", config)
    yield from _list_decoder_shapes(text)
    if text is not config:
        tower, width = config["vision_config"], text["hidden_size"]
        yield from _list_tower_shapes(tower)
        yield from _list_linear("projector.linear_1", tower["hidden_size"], width)
        yield from _list_linear("projector.linear_2", width, width)


def _list_decoder_shapes(text: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    width, hidden = text["hidden_size"], text["intermediate_size"]
    heads, shared = text["num_attention_heads"], text["num_key_value_heads"]
    size = text.get("head_dim", width // heads)
    yield from (("embed_tokens.weight", [text["vocab_size"], width]), ("norm.weight", [width]))
    inside = {"q": [heads * size, width], "k": [shared * size, width], "v": [shared * size, width]}
    inside |= {"o": [width, heads * size], "gate": [hidden, width], "up": [hidden, width]}
    inside |= {"down": [width, hidden], "input_norm": [width], "attention_norm": [width]}
    if text["model_type"] == "qwen3":
        inside |= {"q_norm": [size], "k_norm": [size]}
    for number in range(text["num_hidden_layers"]):
        yield from ((f"layers.{number}.{name}", shape) for name, shape in inside.items())


def _list_tower_shapes(tower: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    width, hidden, side = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    yield "tower.patch_embedding.weight", [width, 3, side, side]
    yield "tower.patch_embedding.bias", [width]
    yield "tower.position_embedding.weight", [(tower["image_size"] // side) ** 2, width]
    yield from _list_norm("tower.post_norm", width)
    for number in range(tower["num_hidden_layers"]):
        layer = f"tower.layers.{number}"
        for name in ("q", "k", "v", "out"):
            yield from _list_linear(f"{layer}.{name}", width, width)
        yield from _list_linear(f"{layer}.fc1", width, hidden)
        yield from _list_linear(f"{layer}.fc2", hidden, width)
        yield from (*_list_norm(f"{layer}.norm1", width), *_list_norm(f"{layer}.norm2", width))


def _list_linear(name: str, num_in: int, num_out: int) -> Iterator[tuple[str, list[int]]]:
    yield from ((f"{name}.weight", [num_out, num_in]), (f"{name}.bias", [num_out]))


def _list_norm(name: str, width: int) -> Iterator[tuple[str, list[int]]]:
    yield from ((f"{name}.weight", [width]), (f"{name}.bias", [width]))
