"""Model inputs of a microbatch with images: embeddings with image features, and the family's positions.

`locate_images` records, for every microbatch of a batch, which images its tokens stand for.
`build_image_inputs` turns that into the arguments of a forward call.

Invariants
* Every distinct image of a microbatch is encoded once, no matter how many steps show it. The gradients of all
  its places reach the encoder through that one pass.
* A token of the tree stands for the same feature in every step that contains it: tokens in images have keys
  (image, id), and an image's run is the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepwell.core import ImageStore, TokenState
from stepwell.packing import Microbatch, Packed, StepTable
from stepwell.policies.forward import ForwardInputs, get_inputs
from stepwell.policies.vlm.vision import Pixels, compute_features, embed_with_features, prepare_pixels
from stepwell.rendering.vision import ImageFormat, PlacedImage

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ImagePlaces:
    """Where the images of a microbatch are.

    The token at flat place `sites[i]` takes row `rows[i]` of the features of `names`, which are stacked image
    by image. `positions` is [axes, rows, columns], or None if positions equal depths.
    """

    names: tuple[str, ...]
    sites: IntArray
    rows: IntArray
    positions: IntArray | None


def locate_images(packed: Packed, image_format: ImageFormat, image_store: ImageStore) -> None:
    """Record the images of every microbatch. Refuse a prompt whose image tokens are wrong."""
    if all("image_places" in microbatch.cache for microbatch in packed.microbatches):
        return
    placed = [
        image_format.place_images(TokenState(sequence, spans), image_store) if spans else []
        for sequence, spans in zip(packed.table.sequences, packed.table.images, strict=True)
    ]
    for microbatch in packed.microbatches:
        microbatch.cache["image_places"] = _locate_in_microbatch(
            microbatch, packed.table, placed, image_format
        )


def _locate_in_microbatch(
    microbatch: Microbatch, table: StepTable, placed: list[list[PlacedImage]], image_format: ImageFormat
) -> ImagePlaces:
    first_row: dict[str, int] = {}
    num_features = 0
    feature: dict[int, IntArray] = {}  # per step, the feature row of each token, or -1
    for step in microbatch.steps.tolist():
        feature[step] = np.full(table.lengths[step], -1, dtype=np.int64)
        for place in placed[step]:
            span, tokens = place.span, place.tokens
            if span.image not in first_row:
                first_row[span.image] = num_features
                num_features += tokens.num_features
            rows = first_row[span.image] + np.cumsum(tokens.is_feature) - 1
            feature[step][span.start : span.start + span.length] = np.where(tokens.is_feature, rows, -1)
    found = _gather_by_token(microbatch, feature)
    positions = None
    if image_format.num_axes > 1:
        own = {s: image_format.build_positions(int(table.lengths[s]), placed[s]) for s in feature}
        axes = [
            _gather_by_token(microbatch, {step: rows[axis] for step, rows in own.items()})
            for axis in range(image_format.num_axes)
        ]
        positions = np.stack(axes)
    flat = found.reshape(-1)
    sites = np.flatnonzero(flat >= 0)
    return ImagePlaces(tuple(first_row), sites, flat[sites], positions)


def _gather_by_token(microbatch: Microbatch, known: dict[int, IntArray]) -> IntArray:
    """Map per-step values of tokens to the tokens of the microbatch, [rows, columns]."""
    starts = np.zeros(max(known) + 1, dtype=np.int64)
    starts[list(known)] = np.cumsum([0, *(row.size for row in known.values())])[:-1]
    found: IntArray = np.concatenate(list(known.values()))[starts[microbatch.origins] + microbatch.positions]
    return found


def build_image_inputs(
    microbatch: Microbatch, device: torch.device, image_format: ImageFormat, image_store: ImageStore
) -> ForwardInputs:
    """Move `microbatch` to `device` with its images. The result is cached for the next pass."""
    key = ("inputs with images", device)
    if key not in microbatch.cache:
        microbatch.cache[key] = _build_image_inputs(microbatch, device, image_format, image_store)
    made: ForwardInputs = microbatch.cache[key]
    return made


def _build_image_inputs(
    microbatch: Microbatch, device: torch.device, image_format: ImageFormat, image_store: ImageStore
) -> ForwardInputs:
    plain = get_inputs(microbatch, device)
    image_places: ImagePlaces = microbatch.cache["image_places"]
    arguments: dict[str, Any] = dict(plain.arguments)
    if image_places.positions is not None:
        arguments["position_ids"] = _pad_positions(image_places.positions, arguments["input_ids"])
    if not image_places.names:
        return replace(plain, arguments=arguments)
    pixels = prepare_pixels(image_format, [image_store.get(name) for name in image_places.names]).to(device)
    sites, rows = (torch.from_numpy(array).to(device) for array in (image_places.sites, image_places.rows))
    return replace(plain, arguments=arguments, embed=_Embed(pixels, sites, rows))


def _pad_positions(positions: IntArray, input_ids: Tensor) -> Tensor:
    """Pad positions [axes, rows, columns] with zeros for padding columns."""
    missing = input_ids.shape[1] - positions.shape[2]
    padded = np.pad(positions, ((0, 0), (0, 0), (0, missing)))
    return torch.from_numpy(padded).to(input_ids.device)


@dataclass(frozen=True, slots=True, eq=False)
class _Embed:
    """Embeds a microbatch's ids and inserts the features of its images."""

    pixels: Pixels
    sites: Tensor
    rows: Tensor

    def __call__(self, model: Any, input_ids: Tensor) -> Tensor:
        features = torch.cat(compute_features(model, self.pixels))
        return embed_with_features(model, input_ids, self.sites, features[self.rows])
