"""The frame: one message to or from a worker, the same bytes in shared memory and over HTTP.

    magic "SWFR" | format u8 | flags u8 | 0 u16 | header u32 | payload u64 | header crc u32 | payload crc u32
    JSON {"op", "header", "arrays": [[dtype, shape], …]}, filled up to 64 bytes
    the bytes of every array in that order, each filled up to 64 bytes

A frame is an operation's name, a JSON header and numpy arrays in order; what they mean is said in
`codecs.py`. Nothing is ever unpickled.

Invariants
* `decode(encode(f))` has the same operation, header and arrays, bit for bit.
* Bytes that are damaged, cut short, too long or not ours raise `EncodingError`. The header is always
  checked by its digest; the payload where it was encoded with `is_checked` (over a network: memory that
  two processes share is not damaged on the way).
* Decoded arrays are read-only views of the bytes they came in.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.core import EncodingError, InputError
from stepwell.core.arrays import AnyArray

MAGIC, FORMAT = b"SWFR", 2
ALIGNMENT = 64
_HEAD = struct.Struct("<4sBBHIQII")
_IS_CHECKED = 1
_DTYPES = {
    name: np.dtype(name)
    for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ZEROS = bytes(ALIGNMENT)
Buffer = Any  # bytes, a view of them or a contiguous array; typing has no word for it before Python 3.12


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    op: str
    header: dict[str, Any] = field(default_factory=dict)
    arrays: Sequence[AnyArray] = ()


def encode(frame: Frame, *, is_checked: bool = False) -> tuple[list[Buffer], int]:
    """The parts whose bytes, one after the other, are the frame; and how many bytes that are."""
    payload: list[Buffer] = []
    described, size = [], 0
    for array in frame.arrays:
        name, num_bytes = _NAMES.get(array.dtype), array.nbytes
        if name is None:
            raise InputError(f"arrays of dtype {array.dtype} cannot be sent; convert to a plain number type")
        described.append([name, array.shape])
        if not num_bytes:
            continue
        payload.append(np.ascontiguousarray(array))
        gap = -num_bytes % ALIGNMENT
        if gap:
            payload.append(_ZEROS[:gap])
        size += num_bytes + gap
    text = _json({"op": frame.op, "header": frame.header, "arrays": described})
    filled = text + _ZEROS[: -(_HEAD.size + len(text)) % ALIGNMENT]
    digest = _crc(payload) if is_checked else 0
    head = _HEAD.pack(MAGIC, FORMAT, _IS_CHECKED * is_checked, 0, len(text), size, zlib.crc32(filled), digest)
    return [head + filled, *payload], len(head) + len(filled) + size


def to_bytes(frame: Frame) -> bytes:
    """The frame as bytes that check themselves, for a network."""
    parts, _ = encode(frame, is_checked=True)
    return b"".join(parts)


def decode(data: Buffer) -> Frame:
    """The frame that `encode` wrote; damaged or foreign bytes raise `EncodingError`."""
    view = memoryview(data).toreadonly().cast("B")
    text, payload = _opened(view)
    try:
        value, end = _DECODER.raw_decode(words := str(text, "utf-8"))
        if end != len(words):
            raise EncodingError("the frame's header has something behind it")
        op, header, described = value["op"], value["header"], value["arrays"]
        specs = [(_known(name), _shape(shape)) for name, shape in described]
    except EncodingError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EncodingError(f"the frame's header is not one of ours: {error!r}") from error
    if type(op) is not str or type(header) is not dict or len(value) != 3:
        raise EncodingError("the frame's header does not hold an operation, its header and its arrays")
    return Frame(op, header, _arrays(payload, specs))


def _opened(view: memoryview) -> tuple[memoryview, memoryview]:
    """The header's text and the payload, where the sizes and digests are right."""
    if len(view) < _HEAD.size:
        raise EncodingError(f"the frame has {len(view)} bytes, fewer than its own head of {_HEAD.size}")
    magic, version, flags, zero, text_size, size, text_digest, digest = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise EncodingError("not a Stepwell frame (wrong first bytes)")
    if version != FORMAT:
        raise EncodingError(f"the frame has format {version}, this Stepwell speaks format {FORMAT}")
    start = _HEAD.size + text_size
    start += -start % ALIGNMENT
    if flags not in (0, _IS_CHECKED) or zero or start + size != len(view):
        raise EncodingError(f"the frame has {len(view)} bytes where its head says {start + size}")
    text, payload = view[_HEAD.size : _HEAD.size + text_size], view[start:]
    if zlib.crc32(view[_HEAD.size : start]) != text_digest:
        raise EncodingError("the frame's header is damaged: its digest does not fit")
    if zlib.crc32(payload) != digest if flags else digest:
        raise EncodingError("the frame's arrays are damaged: their digest does not fit")
    return text, payload


def _arrays(payload: memoryview, specs: list[tuple[np.dtype[Any], tuple[int, ...]]]) -> list[AnyArray]:
    found: list[AnyArray] = []
    offset = 0
    for dtype, shape in specs:
        count = math.prod(shape)
        size = count * dtype.itemsize
        if offset + size > len(payload):
            raise EncodingError("the frame ends inside an array")
        if size:
            array = np.frombuffer(payload, dtype, count, offset)
            found.append(array if len(shape) == 1 else array.reshape(shape))
        else:
            found.append(_empty(shape, dtype))
        offset += size + -size % ALIGNMENT
    if offset != len(payload):
        raise EncodingError(f"the frame has {len(payload) - offset} bytes left over")
    return found


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    try:
        array = np.empty(shape, dtype)
    except ValueError as error:  # a shape such as (2**62, 0)
        raise EncodingError(f"the frame describes an array of shape {shape}") from error
    array.setflags(write=False)
    return array


def _known(name: Any) -> np.dtype[Any]:
    if type(name) is not str or name not in _DTYPES:
        raise EncodingError(f"the frame describes an array of dtype {name!r}")
    return _DTYPES[name]


def _shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not list or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
        raise EncodingError(f"the frame describes an array of shape {shape}")
    return tuple(shape)


def _crc(parts: Sequence[Buffer]) -> int:
    digest = 0
    for part in parts:
        digest = zlib.crc32(part, digest)
    return digest


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's; anything else is no JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is no JSON value")


_DECODER = json.JSONDecoder()
# without a check of its own: a header that holds itself ends as a RecursionError
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain, check_circular=False)


def _json(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the header of {value['op']!r} cannot be sent: {error}") from error


def is_json(value: Any) -> bool:
    """Whether a header can carry it."""
    try:
        _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
