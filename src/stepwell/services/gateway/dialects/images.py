"""Images in requests: data URLs and base64, for a policy that sees.

Nothing is ever fetched: a URL that points elsewhere is refused, since a gateway must not call addresses that
a client names.
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
from stepwell.services.gateway.chat import ImageDecoder
from stepwell.services.gateway.dialects.request_bodies import join_texts, refuse_field, refuse_media

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/jpg": "JPEG"}


def read_data_url(url: str | None, image_decoder: ImageDecoder | None, param: str) -> ImagePart:
    """The image in a data URL."""
    if image_decoder is None:
        refuse_media(param)
    head, comma, data = (url or "").partition(",")
    kind, _, coding = head.removeprefix("data:").partition(";")
    if not head.startswith("data:") or not comma or coding != "base64":
        refuse_field(param, "send the image itself as `data:image/png;base64,...`; nothing is fetched")
    return read_base64_image(data, kind, image_decoder, param)


def read_base64_image(
    data: str | None, media_type: str | None, image_decoder: ImageDecoder | None, param: str
) -> ImagePart:
    """A PNG or JPEG image in base64."""
    if image_decoder is None:
        refuse_media(param)
    if media_type not in FORMATS:
        refuse_field(param, f"{media_type!r} is not supported; send image/png or image/jpeg in base64")
    try:
        raw = base64.b64decode(data or "", validate=True)
    except (binascii.Error, ValueError):
        refuse_field(param, "the image is not valid base64")
    return ImagePart(image_decoder(raw, FORMATS[media_type], param))


def join_content(pieces: Iterable[str | ImagePart]) -> str | tuple[Part, ...]:
    """The content of a message: text alone, or text and images in their order."""
    parts: list[Part] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        parts += [TextPart(join_texts(texts)), piece] if texts else [piece]
        texts = []
    if not parts:
        return join_texts(texts)
    return (*parts, TextPart(join_texts(texts))) if texts else tuple(parts)


def decode_image(raw: bytes, kind: str, max_pixels: int, param: str) -> AnyArray:
    """The pixels of a PNG or JPEG file, uint8 RGB. Too large an image is refused before it is unpacked."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw), formats=(kind,)) as image:
            width, height = image.size
            if width * height > max_pixels:
                refuse_field(
                    param, f"has {width} x {height} pixels, but at most {max_pixels:,} are read (max_pixels)"
                )
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        refuse_field(param, f"this {kind} file cannot be read ({type(error).__name__})")
