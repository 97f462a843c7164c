"""Images in an engine: their pixels, their features, and their places in the slots.

A prompt names its images by content hash (`TokenState.images`). `ImageFeatures` gets the pixels
from a `ImageStore`, the places of their features from the model's `ImageFormat`, and the features,
which replace the embeddings of placeholders, from the model itself.

Invariants
* Features are computed once per distinct image and set of weights, many images at a time. The
  most recent ones are kept, up to `FEATURE_BYTES`, and all are dropped with the weights.
* In the slot table a token of an image is a negative number for the pair of image and token id.
  So comparing prefixes compares images too: equal placeholders of different images never share
  a cache. No number is used twice, not even after `forget`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stepwell.core.arrays import AnyArray, IntArray
from stepwell.core.errors import EngineError, InputError
from stepwell.core.images import ImageStore
from stepwell.core.step import TokenState
from stepwell.rendering.vision import ImageFormat, PlacedImage

FEATURE_BYTES = 256 * 2**20
IMAGES_AT_ONCE = 64

EncodeImages = Callable[[Sequence[AnyArray]], list[torch.Tensor]]
"""Images (uint8 RGB) to their features, [num_features, width] each, with the current weights."""


@dataclass(frozen=True, slots=True)
class TokenFeatures:
    """Image features of some tokens of a pass: token `places[i]` of the flat list has `features[i]`."""

    places: torch.Tensor
    features: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """The prompt in a slot with its images. `positions` [axes, T] are None where they simply count up."""

    ids: IntArray
    placed: list[PlacedImage]
    positions: AnyArray | None


class ImageFeatures:
    """Images of the prompts in an engine's slots, and their features."""

    def __init__(
        self, image_format: ImageFormat, image_store: ImageStore, encode_images: EncodeImages
    ) -> None:
        self.image_format, self.image_store = image_format, image_store
        self._encode_images = encode_images
        self._features: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._num_bytes = 0
        self._numbers: dict[tuple[str, int], int] = {}
        self._num_numbered = 0
        self._in_slot: dict[int, _Prompt] = {}

    def check_prompt(self, state: TokenState) -> None:
        """Refuse a prompt whose image tokens are not those of this model, or that ends with an image."""
        self.image_format.place_images(state, self.image_store)
        if state.images and state.images[-1].start + state.images[-1].length == state.prompt_ids.size:
            raise InputError("state.images: the prompt ends with an image; add at least one token after it")

    def encode_prompt(self, state: TokenState) -> IntArray:
        """Encode a prompt for the slot table: image tokens become numbers of (image, token id)."""
        if not state.images:
            return state.prompt_ids
        keys = state.prompt_ids.copy()
        for span in state.images:
            own = keys[span.start : span.start + span.length]
            for token in np.unique(own):
                own[own == token] = self._number_token(span.image, int(token))
        return keys

    def _number_token(self, image: str, token: int) -> int:
        pair = image, token
        if pair not in self._numbers:
            self._num_numbered += 1
            self._numbers[pair] = -self._num_numbered
        return self._numbers[pair]

    def seat_prompt(self, slot: int, state: TokenState) -> int:
        """Note the prompt of a slot; return how far positions of later tokens are from their places."""
        length, positions = state.prompt_ids.size, None
        placed = self.image_format.place_images(state, self.image_store)
        if placed and self.image_format.num_axes > 1:
            positions = self.image_format.build_positions(length, placed)
        self._in_slot[slot] = _Prompt(state.prompt_ids, placed, positions)
        return 0 if positions is None else int(positions[:, -1].max()) + 1 - length

    def read_ids(self, slot: int, start: int, keys: AnyArray) -> AnyArray:
        """Return the token ids behind a slot's keys from place `start` on."""
        prompt = self._in_slot[slot].ids[start : start + len(keys)]
        return np.concatenate([prompt, keys[len(prompt) :]])

    def find_features(self, slots: AnyArray, starts: AnyArray, counts: AnyArray) -> TokenFeatures | None:
        """Find the image features of runs of `counts` tokens from `starts` in `slots`, laid end to end."""
        shown: list[tuple[PlacedImage, AnyArray]] = []
        places: list[AnyArray] = []
        offset = 0
        for slot, start, count in zip(slots.tolist(), starts.tolist(), counts.tolist(), strict=True):
            for placed in self._in_slot[slot].placed:
                at = placed.span.start + np.flatnonzero(placed.tokens.is_feature)
                rows = np.flatnonzero((at >= start) & (at < start + count))
                if len(rows):
                    shown.append((placed, rows))
                    places.append(at[rows] - start + offset)
            offset += count
        if not shown:
            return None
        features = self._get_features([placed.span.image for placed, _ in shown])
        found = torch.cat([_select_features(features[p.span.image], p, rows) for p, rows in shown])
        return TokenFeatures(torch.from_numpy(np.concatenate(places)).to(found.device), found)

    def positions(self, slots: AnyArray, starts: AnyArray, counts: AnyArray) -> AnyArray | None:
        """Return rotary positions [axes, T] of such runs; None where they are the tokens' places."""
        prompts = [self._in_slot[slot] for slot in slots.tolist()]
        if all(prompt.positions is None for prompt in prompts):
            return None
        runs = zip(prompts, starts.tolist(), counts.tolist(), strict=True)
        axes = self.image_format.num_axes
        return np.concatenate(
            [_extend_positions(prompt, axes, start, count) for prompt, start, count in runs], 1
        )

    def _get_features(self, images: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return features by image; missing ones are computed together."""
        wanted = dict.fromkeys(images)
        missing = [image for image in wanted if image not in self._features]
        found = {image: self._features[image] for image in wanted if image in self._features}
        for start in range(0, len(missing), IMAGES_AT_ONCE):
            some = missing[start : start + IMAGES_AT_ONCE]
            pixels = [self.image_store.get(image) for image in some]
            found.update(zip(some, self._encode_images(pixels), strict=True))
        for image in wanted:
            self._keep_features(image, found[image])
        return found

    def _keep_features(self, image: str, features: torch.Tensor) -> None:
        if image not in self._features:
            self._features[image] = features
            self._num_bytes += features.nbytes
        self._features.move_to_end(image)
        while self._num_bytes > FEATURE_BYTES and len(self._features) > 1:
            self._num_bytes -= self._features.popitem(last=False)[1].nbytes

    def forget(self) -> None:
        """Drop all features: the weights changed, or later samples must not depend on earlier ones."""
        self._features.clear()
        self._num_bytes = 0
        self._numbers.clear()


def _select_features(features: torch.Tensor, placed: PlacedImage, rows: AnyArray) -> torch.Tensor:
    if len(features) != placed.tokens.num_features:
        raise EngineError(
            f"image {placed.span.image} has {placed.tokens.num_features} placeholders, but the model "
            f"computes {len(features)} features; the image format belongs to another model"
        )
    return features[int(rows[0]) : int(rows[-1]) + 1]


def _extend_positions(prompt: _Prompt, axes: int, start: int, count: int) -> AnyArray:
    """Return the rotary positions of a run: those of the prompt, then counting up."""
    own = prompt.positions
    if own is None:
        return np.broadcast_to(np.arange(start, start + count), (axes, count))
    size = own.shape[1]
    known = own[:, start : start + count]
    later = np.arange(max(start, size), start + count) - size + int(own[:, -1].max()) + 1
    return np.concatenate([known, np.broadcast_to(later, (axes, len(later)))], axis=1)
