"""The binary form of the record: it gives back every bit, and refuses what is damaged."""

from __future__ import annotations

import struct
import zlib
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.core import (
    JSON,
    ArrayAction,
    ArrayState,
    EncodingError,
    FinishReason,
    ImageSpan,
    InputError,
    Outcome,
    OutcomeSource,
    Sampling,
    Status,
    Step,
    Task,
    TextAction,
    TextState,
    TokenAction,
    TokenState,
    Trajectory,
    VersionSpan,
    hash_bytes,
)
from stepwell.core.encoding import (
    decode_step,
    decode_trajectory,
    encode_step,
    encode_trajectory,
    read_action_text,
)

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
finite32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
text = st.text(st.characters(), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
infos = st.dictionaries(text, json_values, max_size=3)
numbers = hnp.arrays(
    st.sampled_from([np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, max_side=3),
)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.0, 10.0),
    top_p=st.floats(0.01, 1.0),
    seed=st.none() | st.integers(0, 2**63),
    finish_reason=st.sampled_from(FinishReason),
)
versions = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: VersionSpan(*sorted(pair)))


@st.composite
def token_states(draw: st.DrawFn) -> TokenState:
    prompt = draw(ids)
    images = []
    if draw(st.booleans()):
        length = draw(st.integers(1, len(prompt)))
        images.append(ImageSpan(hash_bytes(draw(st.binary(max_size=4))), len(prompt) - length, length))
    return TokenState(np.array(prompt, np.int32), tuple(images))


array_states = st.builds(ArrayState, st.dictionaries(text, numbers, min_size=1, max_size=3), text)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["token", "text", "array"]))
    if kind == "token":
        state, action = draw(token_states()), TokenAction(np.array(draw(ids), np.int32), draw(text))
    elif kind == "text":
        state, action = TextState(), TextAction(draw(text))
    else:
        chunk = draw(hnp.arrays(np.float32, (2, 3), elements=finite32))
        state = draw(array_states)
        action = ArrayAction(chunk, draw(st.integers(0, 4)), draw(st.dictionaries(text, numbers, max_size=2)))
    logprobs = draw(st.lists(finite32, min_size=action.num_units, max_size=action.num_units))
    return Step(
        state=state,
        action=action,
        behavior_logprobs=np.array(logprobs, np.float32),
        reward=draw(st.none() | finite),
        reward_parts=draw(st.dictionaries(text, finite, max_size=3)),
        sampling=draw(samplings),
        policy_version=draw(versions),
        anchor=draw(st.none() | text),
        info=draw(infos),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    return Trajectory(
        task=Task(draw(text.filter(bool)), draw(infos), draw(text), draw(st.integers(0, 99)), ("tag",)),
        steps=draw(st.lists(steps(), max_size=4)),
        status=draw(st.sampled_from(Status)),
        group=draw(text),
        final_state=draw(st.none() | token_states() | array_states | st.just(TextState())),
        error="said",
        timings=draw(st.dictionaries(text, st.floats(0, 1e6), max_size=2)),
        info=draw(infos),
        outcome=draw(
            st.none() | st.builds(Outcome, st.floats(0, 1), st.sampled_from(OutcomeSource), judge=text)
        ),
    )


def dialogue(num_steps: int) -> Trajectory:
    """An append-only dialogue: every prompt continues the one before, action included."""
    generator = np.random.default_rng(0)
    history = generator.integers(0, 50_000, 96)
    steps = []
    for _ in range(num_steps):
        action = generator.integers(0, 50_000, 16)
        steps.append(Step.from_tokens(history, action, behavior_logprobs=-generator.random(16)))
        history = np.concatenate([history, action, generator.integers(0, 50_000, 48)])
    return Trajectory(Task("world", {"n": 1}), steps, Status.SUCCESS, id="traj-0")


@given(steps())
def test_a_step_comes_back_bit_for_bit(step: Step) -> None:
    back = decode_step(encode_step(step))
    assert back == step
    assert back.behavior_logprobs.tobytes() == step.behavior_logprobs.tobytes()


@given(steps())
def test_the_text_of_an_action_is_read_from_the_header_alone(step: Step) -> None:
    written = getattr(step.action, "text", "")
    data = encode_step(step)
    assert not written or read_action_text(data) == written
    with pytest.raises(EncodingError):
        read_action_text(data[:40])


@pytest.mark.parametrize("reply", ["hello", {"role": "assistant", "text": "hello"}])
def test_a_reply_stored_as_an_empty_robot_step_is_read_as_text(reply: JSON) -> None:
    nothing = ArrayAction(np.zeros((0, 0), np.float32), 0)
    older = Step(ArrayState({}), nothing, np.zeros(0, np.float32), info={"reply": reply})
    back = decode_step(encode_step(older))
    assert (back.state, back.action, back.info) == (TextState(), TextAction("hello"), older.info)


@given(trajectories())
def test_a_trajectory_comes_back_bit_for_bit(trajectory: Trajectory) -> None:
    assert decode_trajectory(encode_trajectory(trajectory)) == trajectory


@given(st.data())
def test_any_single_damaged_byte_is_refused(data: st.DataObject) -> None:
    record = bytearray(encode_trajectory(dialogue(2)))
    position = data.draw(st.integers(0, len(record) - 1))
    record[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EncodingError):
        decode_trajectory(bytes(record))


@given(st.integers(0, 10_000))
def test_a_record_cut_short_or_grown_is_refused(length: int) -> None:
    record = encode_trajectory(dialogue(2))
    if length < len(record):
        with pytest.raises(EncodingError):
            decode_trajectory(record[:length])
    with pytest.raises(EncodingError, match="payload bytes"):
        decode_trajectory(record + b"x")


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        decode_step(data)


def test_a_header_that_lies_is_refused_even_with_a_fitting_digest() -> None:
    def forged(header: bytes, tail: bytes = b"") -> bytes:
        raw = struct.pack("<I", len(header)) + header + tail
        stored = zlib.compress(raw)
        digest = blake2b(stored, digest_size=16).digest()
        return struct.pack("<4sBBII16s", b"SWEL", 1, 1, len(stored), len(raw), digest) + stored

    for header in (
        b"{}",
        b"[]",
        b"null",
        b"{not json",
        b'{"state":{"shared":5,"ids":["<i4",[0]],"images":[]},"action":{"ids":["<i4",[0]],"text":""}}',
        b'{"state":{"shared":0,"ids":["<i4",[1000000]],"images":[]}}',
        b'{"state":{"shared":0,"ids":["|O",[1]],"images":[]}}',
    ):
        with pytest.raises(EncodingError):
            decode_step(forged(header))


def test_a_decompression_bomb_is_refused_without_being_inflated() -> None:
    stored = zlib.compress(b"\0" * 50_000_000)
    digest = blake2b(stored, digest_size=16).digest()
    record = struct.pack("<4sBBII16s", b"SWEL", 1, 1, len(stored), 100, digest) + stored
    with pytest.raises(EncodingError, match="unpacks to 101 bytes, but 100 were written"):
        decode_step(record)


def test_another_format_version_is_refused_by_name() -> None:
    record = bytearray(encode_step(Step.from_tokens([1], [2])))
    record[4] = 9
    with pytest.raises(EncodingError, match="format 9, this Stepwell reads format 1"):
        decode_step(bytes(record))


def test_a_step_is_not_read_as_a_trajectory() -> None:
    with pytest.raises(EncodingError, match="is a step, not a trajectory"):
        decode_trajectory(encode_step(Step.from_tokens([1], [2])))


def test_an_append_only_dialogue_takes_space_for_new_tokens_only() -> None:
    short, long = (len(encode_trajectory(dialogue(n))) for n in (10, 40))
    tokens_added = 30 * (16 + 48)
    assert long - short < tokens_added * 4 + 30 * 16 * 4 + 30 * 60  # ids, logprobs, a little header each


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"a": (1, 2)}, r"info\['a'\] is a tuple"),
        ({"a": float("nan")}, r"info\['a'\] is nan"),
        ({"a": {3: 1}}, "key that is not a string"),
        ({"a": [np.float32(1)]}, r"info\['a'\]\[0\] is a float32"),
    ],
)
def test_values_that_json_would_change_are_refused_when_written(info: dict, message: str) -> None:
    step = Step.from_tokens([1], [2])
    step.info = info
    with pytest.raises(InputError, match=message):
        encode_step(step)
