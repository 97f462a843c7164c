"""What a family of models does with an image in a prompt: tokens, pixels, positions.

A chat template writes one *marker* (`<image>`, `<|image_pad|>`) where an image stands. The
renderer puts the image's *run* in its place: the ids of `ImageFormat.tokens(height, width)`.
Some ids of a run are *placeholders*, each of which takes one feature of the vision encoder in
place of its embedding; others (row and column tags of tiles) are ordinary tokens.

Invariants
* `ImageSpan(image, start, length)` covers exactly the run: what stands in place of the marker,
  tags inside it included. What the template itself writes around the marker
  (`<|vision_start|>`) is outside.
* The run depends on the image's size alone, and the number of placeholders in it is the
  number of features the model computes for that image.
* `arrays` of several images are joined along the first axis; features come in that order.
* Positions depend on sizes alone. One axis: 0, 1, 2, ... Three (M-RoPE): text advances all
  three together, an image spreads over time, height and width, and what follows it goes on
  after the largest of them. A position never depends on what comes later, so sequences with a
  common beginning share its positions.
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

    `grid` is (time, height, width) of the features, for families with three axes of position.
    """

    ids: IntArray
    is_feature: npt.NDArray[np.bool_]
    grid: tuple[int, int, int] | None = None

    @property
    def num_features(self) -> int:
        return int(self.is_feature.sum())


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An image's run in a sequence of tokens: where it begins, and its tokens."""

    span: ImageSpan
    tokens: ImageTokens


class ImageFormat(ABC):
    """How one model directory writes images into prompts and wants their pixels."""

    family: ClassVar[str]
    num_axes: ClassVar[int] = 1
    """Numbers per position: 1, or 3 where positions are (time, height, width)."""

    def __init__(self, marker: str, marker_id: int) -> None:
        self.marker = marker
        """What a chat template writes where an image stands."""
        self.marker_id = marker_id

    @abstractmethod
    def build_tokens(self, height: int, width: int) -> ImageTokens:
        """The run that stands in a prompt for an image of this size."""

    @abstractmethod
    def build_arrays(self, image: AnyArray) -> dict[str, AnyArray]:
        """The vision encoder's arguments for one image, under the model's own names."""

    def place_images(self, state: TokenState, image_store: ImageStore) -> list[PlacedImage]:
        """The runs of a state's images; refused unless the prompt holds exactly those ids."""
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
