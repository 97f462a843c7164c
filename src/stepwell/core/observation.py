"""What an environment shows an agent after `reset` and after every `step`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell.core import arrays
from stepwell.core.arrays import AnyArray
from stepwell.core.errors import InputError
from stepwell.core.text import replace_half_surrogates
from stepwell.core.tools import ToolSchema


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """Text, images (uint8 RGB, [H, W, 3]) and the tools that may be called now.

    Half surrogates in the text are replaced, because they cannot be encoded.
    """

    text: str = ""
    images: tuple[AnyArray, ...] = ()
    tools: tuple[ToolSchema, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(
                f"observation.text must be text, got {self.text!r:.60} ({type(self.text).__name__})"
            )
        if not self.text.isascii():
            object.__setattr__(self, "text", replace_half_surrogates(self.text))
        if self.images == ():
            return
        frozen = []
        for index, image in enumerate(self.images):
            array = np.asarray(image)
            if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
                raise InputError(
                    f"observation.images[{index}] must be uint8 RGB [H, W, 3], "
                    f"got {array.dtype} {array.shape}"
                )
            frozen.append(arrays.freeze(array))
        object.__setattr__(self, "images", tuple(frozen))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Observation):
            return NotImplemented
        same_words = self.text == other.text and self.tools == other.tools
        same_count = len(self.images) == len(other.images)
        return same_words and same_count and all(map(arrays.equal, self.images, other.images))
