"""Episodes as films: WebM video where PyAV is installed (extra `video`), else an animated GIF.

    images of a replay ─► fitted to a number of bytes (`animations.py`) ─► VP9 in WebM, or GIF

Every browser plays both without a plug-in. A video has controls, any number of frames and real colours, in a
small part of the bytes; a GIF can be pasted anywhere.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from stepwell.monitors.animations import LAST_MS, animate_replay, choose_frame_ms, encode_within
from stepwell.monitors.replays import Replay

if TYPE_CHECKING:
    from PIL.Image import Image

VIDEO, GIF = "video/webm", "image/gif"
MAX_VIDEO_FRAMES = 600
_MIN_SIDE = 192  # smaller images are drawn larger: video halves the resolution of colours
_MILLISECOND = Fraction(1, 1000)
_QUALITY = {"crf": "30", "b": "0", "deadline": "good", "cpu-used": "5"}


@dataclass(frozen=True, slots=True)
class Film:
    """A film with its media type."""

    data: bytes
    kind: str

    @property
    def is_video(self) -> bool:
        return self.kind == VIDEO


def can_make_video() -> bool:
    """Whether PyAV is installed."""
    return find_spec("av") is not None


def make_film(replay: Replay, max_bytes: int, *, as_gif: bool = False) -> Film | None:
    """The episode as a film of at most `max_bytes`; None where nothing moves, as `animate_replay` says."""
    if as_gif or not can_make_video():
        gif = animate_replay(replay, max_bytes)
        return None if gif is None else Film(gif, GIF)
    video = encode_within(replay, max_bytes, encode_video, MAX_VIDEO_FRAMES)
    return None if video is None else Film(video, VIDEO)


def encode_video(images: Sequence[Image]) -> bytes:
    """Images of one size as VP9 in WebM; about six seconds or longer, the last image stays a little."""
    import av

    shown = [_enlarge_image(image) for image in images]
    each_ms, out = choose_frame_ms(len(shown)), io.BytesIO()
    moments = [number * each_ms for number in range(len(shown))]
    with av.open(out, "w", format="webm", options={"fflags": "+bitexact"}) as container:  # no random ids
        stream = container.add_stream("libvpx-vp9", rate=25, options=_QUALITY)
        stream.width, stream.height = shown[0].size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = _MILLISECOND
        stream.codec_context.thread_count = 1
        for image, moment in zip([*shown, shown[-1]], [*moments, moments[-1] + LAST_MS], strict=True):
            frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
            frame.pts, frame.time_base = moment, _MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def _enlarge_image(image: Image) -> Image:
    from PIL.Image import Resampling

    factor = -(-_MIN_SIDE // max(image.size))
    size = (factor * image.width, factor * image.height)
    return image if factor == 1 else image.resize(size, Resampling.NEAREST)
