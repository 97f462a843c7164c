"""Replaces image markers among the ids of a prompt by their images' runs, with checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepwell.core import ImageSpan, ImageStore, RenderError
from stepwell.rendering.messages import ImagePart, Message, Part, TextPart
from stepwell.rendering.vision.format import ImageFormat

Ids = npt.NDArray[np.int32]


def expand_markers(
    ids: Ids, names: Sequence[str], image_format: ImageFormat, image_store: ImageStore, offset: int
) -> tuple[Ids, tuple[ImageSpan, ...]]:
    """Replace each marker in `ids` by its run; also return the spans, with `ids` beginning at `offset`."""
    places = np.flatnonzero(ids == image_format.marker_id)
    if places.size != len(names):
        raise RenderError(
            f"the chat template wrote {places.size} markers {image_format.marker!r} for {len(names)} "
            "images; use the template that came with this vision-language model"
        )
    parts: list[Ids] = []
    spans: list[ImageSpan] = []
    done, size = 0, offset
    for place, name in zip(places.tolist(), names, strict=True):
        run = image_format.build_tokens(*image_store.get_size(name)).ids
        size += place - done
        spans.append(ImageSpan(name, size, run.size))
        parts += (ids[done:place], run)
        done, size = place + 1, size + run.size
    parts.append(ids[done:])
    return np.concatenate(parts), tuple(spans)


def break_markers(message: Message, marker: str) -> Message:
    """Insert a space into every image marker that the message's text contains by chance."""
    content = message.content
    if isinstance(content, str):
        return message if marker not in content else replace(message, content=_break_marker(content, marker))
    if not any(isinstance(part, TextPart) and marker in part.text for part in content):
        return message
    parts: list[Part] = [
        part if isinstance(part, ImagePart) else TextPart(_break_marker(part.text, marker))
        for part in content
    ]
    return replace(message, content=tuple(parts))


def _break_marker(text: str, marker: str) -> str:
    return text.replace(marker, f"{marker[:1]} {marker[1:]}")
