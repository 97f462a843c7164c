"""Images of replays for a page of bounded size: episodes as animated GIFs, and stills made smaller if needed.

`films.py` makes videos of the same images. All come from `replays.json`, so that any run's report has them.
If the result is too large, it is made with fewer pixels, then with fewer frames, until it fits.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from stepwell.core.errors import EncodingError
from stepwell.monitors.replays import Replay

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
MAX_SIDE, MIN_SIDE = 320, 48  # pixels of the longer side
MAX_FRAMES = 60
LAST_MS = 1500


def animate_replay(replay: Replay, max_bytes: int) -> bytes | None:
    """The episode as a GIF of at most `max_bytes`, or None (`encode_within`)."""
    return encode_within(replay, max_bytes, _encode_gif, MAX_FRAMES)


def encode_within(
    replay: Replay, max_bytes: int, encode: Callable[[Sequence[Image]], bytes], max_frames: int
) -> bytes | None:
    """The images of an episode, encoded in at most `max_bytes`.

    None if nothing moves (fewer than two different images), if the images differ in size (text drawn for
    people, which nobody reads in motion), or if it cannot be made small enough.
    """
    pngs = [png for png in (*(f.image_png for f in replay.frames), replay.final_image_png) if png is not None]
    if len(set(pngs)) < 2:
        return None
    images = [_open_png(png) for png in _thin_out(pngs, max_frames)]
    if len({image.size for image in images}) > 1:
        return None
    side = min(MAX_SIDE, max(images[0].size))
    while len(images) > 1:
        encoded = encode([_shrink_image(image, side) for image in images])
        if len(encoded) <= max_bytes:
            return encoded
        side = _choose_side(side, max_bytes / len(encoded))
        if side < MIN_SIDE:
            side, images = MIN_SIDE, _thin_out(images, len(images) // 2)
    return None


def choose_frame_ms(count: int) -> int:
    """How long each of so many images is shown: about six seconds in all."""
    return min(800, max(80, 6000 // count))


def bound_images(replays: Sequence[Replay], max_bytes: int) -> list[Replay]:
    """The same replays with images of at most `max_bytes` in total, each counted once.

    If the images cannot be made small enough, all are left out.
    """
    whole = {frame.image_png for replay in replays for frame in replay.frames}
    whole |= {replay.final_image_png for replay in replays}
    small = {png: png for png in whole if png is not None}
    side = MAX_SIDE
    while (size := sum(map(len, small.values()))) > max_bytes:
        if side < MIN_SIDE:
            return drop_images(replays)
        small = {png: _encode_png(_shrink_image(_open_png(png), side)) for png in small}
        side = _choose_side(side, max_bytes / size)
    return [_replace_images(replay, small) for replay in replays]


def drop_images(replays: Sequence[Replay]) -> list[Replay]:
    """The same replays without images."""
    return [
        replace(
            replay, frames=[replace(frame, image_png=None) for frame in replay.frames], final_image_png=None
        )
        for replay in replays
    ]


def _replace_images(replay: Replay, images: dict[bytes, bytes]) -> Replay:
    def find(png: bytes | None) -> bytes | None:
        return None if png is None else images[png]

    frames = [replace(frame, image_png=find(frame.image_png)) for frame in replay.frames]
    return replace(replay, frames=frames, final_image_png=find(replay.final_image_png))


def _choose_side(side: int, share: float) -> int:
    """The side that should reduce the bytes to `share` of their number; always clearly smaller."""
    return int(side * min(0.8, 0.95 * share**0.5))


def _thin_out(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spread, with the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(count - 1, 1))] for index in range(count)]


def _open_png(png: bytes) -> Image:
    from PIL import Image as pillow

    try:
        with pillow.open(io.BytesIO(png), formats=["PNG"]) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise EncodingError(f"an image of replays.json is not a PNG file ({error})") from error


def _shrink_image(image: Image, side: int) -> Image:
    from PIL.Image import Resampling

    share = side / max(image.size)
    if share >= 1:
        return image
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    return image.resize(size, Resampling.LANCZOS)


def _encode_gif(images: Sequence[Image]) -> bytes:
    """An endless loop of about six seconds; the last frame stays a little longer."""
    from PIL.Image import Quantize

    out = io.BytesIO()
    times = [choose_frame_ms(len(images))] * (len(images) - 1) + [LAST_MS]
    first, *others = [image.quantize(128, method=Quantize.FASTOCTREE) for image in images]
    first.save(out, "GIF", save_all=True, append_images=others, duration=times, loop=0)
    return out.getvalue()


def _encode_png(image: Image) -> bytes:
    from PIL.Image import Quantize

    out = io.BytesIO()
    image.quantize(256, method=Quantize.FASTOCTREE).save(out, "PNG")
    return out.getvalue()
