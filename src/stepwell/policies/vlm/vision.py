"""The vision part of a Hugging Face vision-language model: image features and their insertion.

    encode_images(model, image_format, [pixels, ...])         one tensor [n, H] of features per image
    embed_with_features(model, input_ids, sites, features)    token embeddings with the features inserted
    find_decoder(model)                                       the language model below the head

The rest of the model is then an ordinary causal language model over embeddings, for trainers and engines
alike. Positions come from `ImageFormat.build_positions`.

Invariants
* The features of an image do not depend on the other images in its batch, up to rounding.
* The number of features equals the number of the image's placeholders; otherwise a `ModelError` explains the
  difference.
* A float32 model encodes images in full float32, also on a GPU. With TF32, cuDNN would round the inputs of
  convolutions in some batch sizes and not in others, and engine and trainer logprobs would differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.core import ModelError
from stepwell.core.arrays import AnyArray
from stepwell.rendering.vision import ImageFormat


def find_decoder(model: Any) -> Any:
    """The language model inside: embeddings, layers and final norm."""
    inner = getattr(model, "model", model)
    return inner.language_model if hasattr(inner, "language_model") else inner.text_model


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """Inputs of a vision encoder: its arguments, and the number of features of each image."""

    arguments: dict[str, Tensor]
    counts: tuple[int, ...]

    def to(self, device: torch.device) -> Pixels:
        return Pixels({name: value.to(device) for name, value in self.arguments.items()}, self.counts)


def prepare_pixels(image_format: ImageFormat, images: Sequence[AnyArray]) -> Pixels:
    """Prepare images for the encoder of their family."""
    counts = tuple(image_format.build_tokens(*image.shape[:2]).num_features for image in images)
    prepared = [image_format.build_arrays(image) for image in images]
    arguments = {
        name: torch.from_numpy(np.concatenate([arrays[name] for arrays in prepared])) for name in prepared[0]
    }
    if image_format.family == "idefics3":  # it takes the tiles of one conversation: [1, tiles, 3, S, S]
        arguments["pixel_values"] = arguments["pixel_values"][None]
    return Pixels(arguments, counts)


def compute_features(model: Any, pixels: Pixels) -> list[Tensor]:
    """Features [n, H] of each image, in the order of its placeholders, with gradients."""
    arguments = dict(pixels.arguments)
    if model.device.type == "cuda" and model.dtype == torch.float32:
        torch.backends.cudnn.allow_tf32 = False  # torch's own default for matrix products
    arguments["pixel_values"] = arguments["pixel_values"].to(model.dtype)
    found = model.get_image_features(**arguments).pooler_output
    parts = [found] if isinstance(found, Tensor) else list(found)
    features = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    if features.shape[0] != sum(pixels.counts):
        raise ModelError(
            f"the vision encoder gives {features.shape[0]} features for images that take "
            f"{sum(pixels.counts)} placeholders; config.json and preprocessor_config.json belong to "
            "different models"
        )
    return list(torch.split(features, list(pixels.counts)))


def encode_images(model: Any, image_format: ImageFormat, images: Sequence[AnyArray]) -> list[Tensor]:
    """Prepare images and compute their features."""
    return compute_features(model, prepare_pixels(image_format, images).to(model.device))


def embed_with_features(model: Any, input_ids: Tensor, sites: Tensor, features: Tensor) -> Tensor:
    """Embeddings [*, H] of `input_ids`, with `features` [N, H] at the flat places `sites` [N]."""
    embedded: Tensor = model.get_input_embeddings()(input_ids)
    flat = embedded.reshape(-1, embedded.shape[-1])
    return flat.index_copy(0, sites, features.to(flat.dtype)).reshape(embedded.shape)
