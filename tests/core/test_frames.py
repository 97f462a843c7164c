"""Frames: the same in and out, and nothing else is taken for one."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.core import EncodingError, InputError
from stepwell.core.arrays import equal
from stepwell.core.frames import Frame, decode, encode, to_bytes

DTYPES = ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]
any_array = hnp.arrays(
    st.sampled_from(DTYPES).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
any_frame = st.builds(
    Frame, st.text(), st.dictionaries(st.text(), any_json, max_size=4), st.lists(any_array, max_size=4)
)


@given(any_frame, st.booleans())
def test_decoding_gives_back_what_was_encoded(frame: Frame, is_checked: bool) -> None:
    parts, size = encode(frame, is_checked=is_checked)
    data = b"".join(parts)
    found = decode(data)
    assert len(data) == size
    assert (found.op, found.header) == (frame.op, frame.header)
    assert len(found.arrays) == len(frame.arrays) and all(map(equal, found.arrays, frame.arrays))
    assert not any(array.flags.writeable for array in found.arrays)


@given(any_frame, st.data())
def test_one_changed_byte_anywhere_is_refused(frame: Frame, data: st.DataObject) -> None:
    sent = bytearray(to_bytes(frame))
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EncodingError):
        decode(sent)


@given(any_frame, st.data())
def test_a_frame_that_was_cut_or_has_more_behind_it_is_refused(frame: Frame, data: st.DataObject) -> None:
    sent = to_bytes(frame)
    cut = data.draw(st.integers(0, len(sent) - 1))
    for wrong in (sent[:cut], sent + b"\0", sent + sent):
        with pytest.raises(EncodingError):
            decode(wrong)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        decode(data)


@pytest.mark.parametrize(
    "described",
    [
        [["|O", [1]]],
        [["<f4", [-1]]],
        [["<f4", [1 << 62, 1 << 62]]],
        [["<f4", [1.0]]],
        [["<f4", [0, 1 << 62, 1 << 62]]],
        [["<f4"]],
        [["<f4", [1]]],
        7,
    ],
)
def test_arrays_that_cannot_be_are_refused(described: object) -> None:
    """A frame whose digests are right, from somebody who means no good."""
    assert decode(write_frame([])) == Frame("x", {})
    with pytest.raises(EncodingError):
        decode(write_frame(described))


def write_frame(described: object) -> bytes:
    text = json.dumps({"op": "x", "header": {}, "arrays": described}).encode()
    filled = text + bytes(-(28 + len(text)) % 64)
    return struct.pack("<4sBBHIQII", b"SWFR", 2, 1, 0, len(text), 0, zlib.crc32(filled), 0) + filled


def test_objects_and_headers_that_are_no_json_are_refused_when_sent() -> None:
    with pytest.raises(InputError, match="dtype object"):
        encode(Frame("x", {}, [np.array([object()])]))
    with pytest.raises(InputError, match="dtype >f4"):
        encode(Frame("x", {}, [np.zeros(2, ">f4")]))
    with pytest.raises(InputError, match="'x' cannot be sent"):
        encode(Frame("x", {"value": object()}))


def test_arrays_lie_at_multiples_of_64_bytes() -> None:
    arrays = [np.arange(5, dtype=np.uint8), np.arange(3.0), np.ones((2, 9), np.float32)]
    data = np.frombuffer(to_bytes(Frame("x", {}, arrays)), np.uint8)
    base = data.__array_interface__["data"][0]
    places = [array.__array_interface__["data"][0] - base for array in decode(data).arrays]
    assert [place % 64 for place in places] == [0, 0, 0]
    assert places[1] - places[0] == 64
