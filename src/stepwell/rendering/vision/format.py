"""The interface of a model family's image format: tokens, pixels, positions.

A chat template writes one *marker* (`<image>`, `<|image_pad|>`) in place of an image. The renderer replaces
it by the image's *run*: the ids of `ImageFormat.build_tokens(height, width)`. Some ids of a run are
*placeholders*; the embedding of each is replaced by one feature of the vision encoder. Others (row and column
tags of tiles) are ordinary tokens.

Invariants
* `ImageSpan(image, start, length)` covers exactly the run: everything that replaces the marker, including
  tags. What the template itself writes around the marker (`<|vision_start|>`) is outside.
* The run depends only on the image's size. It has as many placeholders as the model computes features for the
  image.
* Arrays of several images are concatenated along the first axis; features come in that order.
* Positions depend only on sizes. One axis: 0, 1, 2, ... Three axes (M-RoPE): text advances all three
  together, an image spreads over time, height and width, and the next token continues after the largest of
  them. A position never depends on later tokens, so sequences with a common beginning share its positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.core import ImageSpan, ImageStore, InputError, TokenState
from stepwell.core.arrays import AnyArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ImageTokens:
    """The run of one image: its ids, and which of them take a feature.

    `grid` is (time, height, width) of the features, for families with three position axes.
    """

    ids: IntArray
    is_feature: npt.NDArray[np.bool_]
    grid: tuple[int, int, int] | None = None

    @property
    def num_features(self) -> int:
        return int(self.is_feature.sum())


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An image's run in a sequence of tokens: its start and its tokens."""

    span: ImageSpan
    tokens: ImageTokens


class ImageFormat(ABC):
    """How one model represents images in prompts, and how it preprocesses pixels."""

    family: ClassVar[str]
    num_axes: ClassVar[int] = 1
    """Numbers per position: 1, or 3 if positions are (time, height, width)."""

    def __init__(self, marker: str, marker_id: int) -> None:
        self.marker = marker
        """What a chat template writes in place of an image."""
        self.marker_id = marker_id

    @abstractmethod
    def build_tokens(self, height: int, width: int) -> ImageTokens:
        """The run for an image of this size."""

    @abstractmethod
    def build_arrays(self, image: AnyArray) -> dict[str, AnyArray]:
        """The vision encoder's arguments for one image, under the model's own names."""

    def place_images(self, state: TokenState, image_store: ImageStore) -> list[PlacedImage]:
        """The runs of a state's images; an error unless the prompt contains exactly those ids."""
        return [
            PlacedImage(span, self._check_tokens(state.prompt_ids, span, image_store))
            for span in state.images
        ]

    def build_positions(self, length: int, placed: Sequence[PlacedImage]) -> npt.NDArray[np.int64]:
        """Positions [num_axes, length] of a sequence with these images."""
        return np.arange(length, dtype=np.int64)[None]

    def _check_tokens(self, prompt_ids: IntArray, span: ImageSpan, image_store: ImageStore) -> ImageTokens:
        tokens = self.build_tokens(*image_store.get_size(span.image))
        if span.length != tokens.ids.size:
            height, width = image_store.get_size(span.image)
            raise InputError(
                f"images: the span at {span.start} has {span.length} tokens, but this model ({self.family}) "
                f"writes an image of {height} x {width} pixels as {tokens.ids.size}; render the prompt "
                "with this model's own image format"
            )
        if not np.array_equal(prompt_ids[span.start : span.start + span.length], tokens.ids):
            raise InputError(
                f"images: the {span.length} prompt_ids from {span.start} on are not the tokens that this "
                f"model ({self.family}) writes for an image; render the prompt with its own image format"
            )
        return tokens
