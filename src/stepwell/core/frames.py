"""Frames: messages to and from workers, with the same bytes in shared memory and over HTTP.

    magic "SWFR" | format u8 | flags u8 | 0 u16 | header u32 | payload u64 | header crc u32 | payload crc u32
    JSON {"op", "header", "arrays": [[dtype, shape], …]}, padded to 64 bytes
    the bytes of every array in that order, each padded to 64 bytes

A frame is an operation's name, a JSON header and an ordered list of numpy arrays; `codecs.py` defines
their meaning. Nothing is ever unpickled.

Invariants
* `decode(encode(f))` has the same operation, header and arrays, bit for bit.
* Damaged, truncated, overlong or foreign bytes raise `EncodingError`. The digest of the header is always
  checked, that of the payload only if it was encoded with `is_checked` (for a network: memory that two
  processes share is not damaged on the way).
* Decoded arrays are read-only views of the received bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from stepwell.core import EncodingError, InputError
from stepwell.core.arrays import AnyArray
from stepwell.core.json_text import make_json_writer, quote

MAGIC, FORMAT = b"SWFR", 2
ALIGNMENT = 64
_HEAD = struct.Struct("<8sIQII")
_HEAD_SIZE = _HEAD.size
_PLAIN, _CHECKED = (MAGIC + bytes([FORMAT, flags, 0, 0]) for flags in (0, 1))  # how a frame begins
_DTYPES = {
    name: np.dtype(name)
    for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ZEROS = bytes(ALIGNMENT)
Buffer = Any  # bytes, a memoryview or a contiguous array; typing has no name for it before Python 3.12


@dataclass(slots=True)  # not frozen: making a frozen one takes three times as long
class Frame:
    """One message."""

    op: str
    header: dict[str, Any] = field(default_factory=dict)
    arrays: Sequence[AnyArray] = ()


def encode(frame: Frame, *, is_checked: bool = False) -> tuple[list[Buffer], int]:
    """The parts of the frame, to be sent one after the other, and their total number of bytes."""
    payload: list[Buffer] = []
    described, size = [], 0
    for array in frame.arrays:
        name, num_bytes = _NAMES.get(array.dtype), array.nbytes
        if name is None:
            raise InputError(f"arrays of dtype {array.dtype} cannot be sent; convert to a number type")
        described.append([name, array.shape])
        if not num_bytes:
            continue
        payload.append(np.ascontiguousarray(array))
        gap = -num_bytes % ALIGNMENT
        if gap:
            payload.append(_ZEROS[:gap])
        size += num_bytes + gap
    digest = _compute_crc(payload) if payload and is_checked else 0
    text = _write_text(frame, _write_json(described))
    start = _write_start(text, size, _CHECKED if is_checked else _PLAIN, digest)
    return [start, *payload], len(start) + size


def _write_text(frame: Frame, arrays: str) -> bytes:
    try:
        header = _write_json(frame.header)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the header of {frame.op!r} cannot be sent: {error}") from error
    return f'{{"op":{quote(frame.op)},"header":{header},"arrays":{arrays}}}'.encode()


def _write_start(text: bytes, size: int, begin: bytes, digest: int) -> bytes:
    """What comes before the arrays."""
    num_bytes = len(text)
    filled = text + _ZEROS[: -(_HEAD_SIZE + num_bytes) % ALIGNMENT]
    return _HEAD.pack(begin, num_bytes, size, crc32(filled), digest) + filled


def encode_text(frame: Frame) -> bytes:
    """Operation, header and the kinds of the arrays, for a transport that carries the arrays beside them."""
    for array in frame.arrays:
        if array.dtype not in _NAMES:
            raise InputError(f"arrays of dtype {array.dtype} cannot be sent; convert to a number type")
    return _write_text(frame, _write_json([[_NAMES[array.dtype], array.shape] for array in frame.arrays]))


def decode_text(text: Buffer, arrays: Sequence[AnyArray]) -> Frame:
    """The frame of `encode_text` and the arrays that came with it. They must be those it describes."""
    op, header, specs = _parse_text(text)
    found = [(array.dtype, array.shape) for array in arrays]
    if found != specs:
        raise EncodingError(f"the frame describes the arrays {specs}, but {found} came with it")
    for array in arrays:
        array.setflags(write=False)
    return Frame(op, header, arrays)


def to_bytes(frame: Frame) -> bytes:
    """The frame as bytes with a checked payload, for a network."""
    if not frame.arrays:
        return _write_start(_write_text(frame, "[]"), 0, _CHECKED, 0)
    parts, _ = encode(frame, is_checked=True)
    return b"".join(parts)


def write_text_frame(op: str, header: str) -> bytes:
    """The bytes of a frame without arrays whose header was written already, as JSON in ASCII."""
    return _write_start(f'{{"op":"{op}","header":{header},"arrays":[]}}'.encode(), 0, _CHECKED, 0)


def measure_frame(start: Buffer) -> int | None:
    """The size of the frame that begins with these bytes; None if they are fewer than a frame's head."""
    if len(start) < _HEAD_SIZE:
        return None
    begin, text_size, size, _, _ = _HEAD.unpack_from(start)
    if begin[:4] != MAGIC:
        raise EncodingError(_explain_beginning(begin))
    end: int = _HEAD_SIZE + text_size
    return end + -end % ALIGNMENT + int(size)


def decode(data: Buffer) -> Frame:
    """The frame that `encode` wrote; damaged or foreign bytes raise `EncodingError`."""
    if type(data) is not bytes:
        data = memoryview(data).toreadonly().cast("B")
    if len(data) < _HEAD_SIZE:
        raise EncodingError(f"the frame has {len(data)} bytes, fewer than its head of {_HEAD_SIZE}")
    begin, text_size, size, text_digest, digest = _HEAD.unpack_from(data)
    if begin != _CHECKED and begin != _PLAIN:
        raise EncodingError(_explain_beginning(begin))
    end = _HEAD_SIZE + text_size
    start = end + -end % ALIGNMENT
    if start + size != len(data):
        raise EncodingError(f"the frame has {len(data)} bytes, but its head says {start + size}")
    if crc32(data[_HEAD_SIZE:start]) != text_digest:
        raise EncodingError("the frame's header is damaged: its digest does not match")
    op, header, specs = _parse_text(data[_HEAD_SIZE:end])
    if not size and not digest and not specs:
        return Frame(op, header)
    payload = memoryview(data)[start:]
    if (crc32(payload) if begin == _CHECKED and size else 0) != digest:
        raise EncodingError("the frame's arrays are damaged: their digest does not match")
    return Frame(op, header, _read_arrays(payload, specs))


def _explain_beginning(begin: bytes) -> str:
    if begin[:4] != MAGIC:
        return "not a Stepwell frame (wrong first bytes)"
    if begin[4] != FORMAT:
        return f"the frame has format {begin[4]}, this Stepwell uses format {FORMAT}"
    return f"the frame's first bytes end in {begin[5:]!r}, which this Stepwell does not know"


def _parse_text(text: Buffer) -> tuple[str, dict[str, Any], list[tuple[np.dtype[Any], tuple[int, ...]]]]:
    try:
        value, end = _read_json(words := str(text, "utf-8"), 0)
        if end != len(words):
            raise EncodingError("the frame's header has extra characters at its end")
        op, header, described = value["op"], value["header"], value["arrays"]
        specs = []
        if described != []:
            specs = [(_parse_dtype(name), _parse_shape(shape)) for name, shape in described]
    except EncodingError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, StopIteration) as error:
        raise EncodingError(f"the frame's header is not valid: {error!r}") from error
    if type(op) is not str or type(header) is not dict or len(value) != 3:
        raise EncodingError("the frame's header must hold an operation, a header and arrays")
    return op, header, specs


def _read_arrays(payload: Buffer, specs: list[tuple[np.dtype[Any], tuple[int, ...]]]) -> list[AnyArray]:
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
            found.append(_make_empty(shape, dtype))
        offset += size + -size % ALIGNMENT
    if offset != len(payload):
        raise EncodingError(f"the frame has {len(payload) - offset} bytes left over")
    return found


def _make_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    try:
        array = np.empty(shape, dtype)
    except ValueError as error:  # a shape such as (2**62, 0)
        raise EncodingError(f"the frame describes an array of shape {shape}") from error
    array.setflags(write=False)
    return array


def _parse_dtype(name: Any) -> np.dtype[Any]:
    if type(name) is not str or name not in _DTYPES:
        raise EncodingError(f"the frame describes an array of dtype {name!r}")
    return _DTYPES[name]


def _parse_shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not list or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
        raise EncodingError(f"the frame describes an array of shape {shape}")
    return tuple(shape)


def _compute_crc(parts: Sequence[Buffer]) -> int:
    digest = 0
    for part in parts:
        digest = crc32(part, digest)
    return digest


def _to_plain(value: Any) -> Any:
    """Convert numpy numbers to Python numbers; other values are not JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


_read_json = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # what `raw_decode` calls
_write_json = make_json_writer(_to_plain)


def is_json(value: Any) -> bool:
    """Whether a header can hold the value."""
    try:
        _write_json(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
