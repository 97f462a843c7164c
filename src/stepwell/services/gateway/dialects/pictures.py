"""Pictures in requests: data URLs and base64, read where a policy that sees is served.

Nothing is ever fetched: a URL that points elsewhere is refused, since a gateway must not call
places that a client names.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterable

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.rendering import ImagePart, TextPart
from stepwell.rendering.messages import Part
from stepwell.services.gateway.dialects.bodies import joined, refuse, refuse_picture
from stepwell.services.gateway.exchange import See

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/jpg": "JPEG"}


def from_url(url: str | None, see: See | None, param: str) -> ImagePart:
    """The picture inside a data URL."""
    if see is None:
        refuse_picture(param)
    head, comma, data = (url or "").partition(",")
    kind, _, coding = head.removeprefix("data:").partition(";")
    if not head.startswith("data:") or not comma or coding != "base64":
        refuse(param, "send the picture itself as `data:image/png;base64,...`; nothing is fetched from URLs")
    return from_base64(data, kind, see, param)


def from_base64(data: str | None, media_type: str | None, see: See | None, param: str) -> ImagePart:
    """A picture as PNG or JPEG in base64."""
    if see is None:
        refuse_picture(param)
    if media_type not in FORMATS:
        refuse(param, f"{media_type!r} is not read; send image/png or image/jpeg in base64")
    try:
        raw = base64.b64decode(data or "", validate=True)
    except (binascii.Error, ValueError):
        refuse(param, "the picture is not base64")
    return ImagePart(see(raw, FORMATS[media_type], param))


def content_of(pieces: Iterable[str | ImagePart]) -> str | tuple[Part, ...]:
    """What a message holds: text alone, or text and pictures in their order."""
    parts: list[Part] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        parts += [TextPart(joined(texts)), piece] if texts else [piece]
        texts = []
    if not parts:
        return joined(texts)
    return (*parts, TextPart(joined(texts))) if texts else tuple(parts)


def decoded(raw: bytes, kind: str, max_pixels: int, param: str) -> AnyArray:
    """The pixels of a PNG or JPEG file, uint8 RGB; refused before it is unpacked where it is too large."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw), formats=(kind,)) as picture:
            width, height = picture.size
            if width * height > max_pixels:
                refuse(
                    param, f"{width} x {height} pixels; at most {max_pixels:,} are read, send a smaller one"
                )
            return np.asarray(picture.convert("RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        refuse(param, f"this is no {kind} file that can be read ({type(error).__name__})")
