"""Tasks, turns, requests and samples: unpacked, they are what was packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.core.test_frames import any_array, any_json

from stepwell.core import (
    ArrayAction,
    ArrayState,
    EncodingError,
    EnvError,
    FinishReason,
    ImageSpan,
    InputError,
    Observation,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Task,
    TokenAction,
    TokenState,
    ToolSchema,
    VersionSpan,
    WorkerError,
)
from stepwell.core.arrays import equal
from stepwell.core.frames import Frame, decode, to_bytes
from stepwell.envs import codecs
from stepwell.envs.frame_values import MAX_STACKED_BYTES
from stepwell.envs.turns import Turn

named = st.dictionaries(st.text(max_size=5), any_array, max_size=3)
json_dict = st.dictionaries(st.text(max_size=5), any_json, max_size=3)
images = hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 3), st.just(3)))
tools = st.builds(
    ToolSchema,
    st.text("abc_", min_size=1),
    st.text(),
    json_dict.map(lambda value: {**value, "type": "object"}),
)
observations = st.builds(
    Observation, st.text(), st.lists(images, max_size=2).map(tuple), st.lists(tools, max_size=2).map(tuple)
)
array_states = st.builds(ArrayState, named, st.text())
errors = st.none() | st.builds(EnvError, st.text()) | st.builds(WorkerError, st.text())
turns = st.builds(
    Turn,
    observations | array_states,
    st.floats(allow_nan=False),
    st.booleans(),
    st.booleans(),
    json_dict,
    errors,
    st.dictionaries(st.text(), st.text(), max_size=2),
)
ids = hnp.arrays(np.int32, st.integers(1, 9), elements=st.integers(0, 2**31 - 1))
spans = st.lists(st.just(ImageSpan("0" * 32, 0, 1)), max_size=1).map(tuple)
token_states = st.builds(TokenState, ids, spans)
maybe_seed = st.none() | st.integers(0, 2**63 - 1)
params = st.builds(
    SamplingParams,
    st.integers(1, 10**6),
    st.floats(0, 100),
    st.floats(0.01, 1),
    maybe_seed,
    st.lists(st.text(min_size=1), max_size=2).map(tuple),
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
    st.booleans(),
)
requests = st.builds(Request, token_states | array_states, params, st.none() | st.text(), st.text())
chunks = hnp.arrays(
    st.sampled_from(["<f4", "<f8"]), hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=3)
)
token_actions = st.builds(TokenAction, ids, st.text())
actions = token_actions | st.builds(ArrayAction, chunks, st.integers(0, 9), named)
samples = st.builds(
    Sampled,
    actions,
    hnp.arrays(np.float32, st.integers(0, 5)),
    st.builds(Sampling, st.floats(0, 9), st.floats(0.1, 1), maybe_seed, st.sampled_from(FinishReason)),
    st.integers(0, 9).map(lambda n: VersionSpan(n, n + 1)),
    st.integers(0, 9),
    st.none() | st.integers(0, 2**52 - 1),
)


def sent(header: dict[str, Any], arrays: Any = ()) -> tuple[dict[str, Any], Any]:
    """Through the bytes of a frame and back."""
    frame = decode(to_bytes(Frame("x", header, arrays)))
    return frame.header, frame.arrays


def values_of(turn: Turn) -> Any:
    told = None if turn.error is None else (type(turn.error), str(turn.error))
    return (
        turn.observation, turn.reward, turn.terminated, turn.truncated, turn.info, told, turn.state,
    )  # fmt: skip


@given(st.lists(st.builds(Task, st.text(min_size=1), json_dict, st.text(), st.integers()), max_size=4))
def test_tasks_come_back_equal(tasks: list[Task]) -> None:
    assert codecs.unpack_tasks(*sent(codecs.pack_tasks(tasks))[:1]) == tasks


@given(st.lists(turns, max_size=5))
def test_turns_come_back_equal(given_turns: list[Turn]) -> None:
    found = codecs.unpack_turns(*sent(*codecs.pack_turns(given_turns)))
    assert list(map(values_of, found)) == list(map(values_of, given_turns))


@given(turns)
def test_a_turn_of_text_alone_comes_back_equal_in_its_short_form(turn: Turn) -> None:
    header = codecs.pack_plain_turn(turn)
    shown = turn.observation
    is_text = isinstance(shown, Observation) and not shown.images and not shown.tools
    has_parts = any(isinstance(value, (dict, list)) for value in turn.info.values())
    assert (header is None) == (not is_text or turn.error is not None or has_parts)
    if header is not None:
        assert values_of(codecs.unpack_plain_turn(*sent(header)[:1])) == values_of(turn)


@pytest.mark.parametrize(
    "values", [None, 3, [], ["a", 1, False, False, {}, {}], ["a", 0.5, False, False, {}]]
)
def test_a_short_turn_of_another_form_is_refused(values: Any) -> None:
    with pytest.raises(EncodingError):
        codecs.unpack_plain_turn({"turn": values})


@given(array_states, st.integers(2, 5))
def test_turns_of_envs_with_the_same_arrays_come_back_equal(state: ArrayState, count: int) -> None:
    arrays = [
        {name: array + i if array.dtype.kind in "if" else array for name, array in state.arrays.items()}
        for i in range(count)
    ]
    given_turns = [Turn(ArrayState(each, state.instruction)) for each in arrays]
    header, packed = codecs.pack_turns(given_turns)
    found = codecs.unpack_turns(*sent(header, packed))
    assert list(map(values_of, found)) == list(map(values_of, given_turns))
    num_stacked = sum(0 < array.nbytes <= MAX_STACKED_BYTES for array in state.arrays.values())
    assert len(packed) == num_stacked + count * (len(state.arrays) - num_stacked)


@given(st.lists(requests, max_size=4))
def test_requests_come_back_equal(given_requests: list[Request]) -> None:
    assert codecs.unpack_requests(*sent(*codecs.pack_requests(given_requests))) == given_requests


@given(st.lists(samples, max_size=4))
def test_samples_come_back_equal(given_samples: list[Sampled]) -> None:
    found = codecs.unpack_samples(*sent(*codecs.pack_samples(given_samples)))
    assert len(found) == len(given_samples)
    for one, other in zip(found, given_samples, strict=True):
        assert equal(one.logprobs, other.logprobs)
        assert (one.action, one.sampling, one.policy_version, one.num_cached, one.position_mark) == (
            other.action, other.sampling, other.policy_version, other.num_cached, other.position_mark,
        )  # fmt: skip


@given(st.lists(chunks, min_size=1, max_size=4))
def test_chunks_and_names_come_back_equal(given_chunks: list[Any]) -> None:
    found = codecs.unpack_actions(*sent(*codecs.pack_actions(given_chunks)))
    assert len(found) == len(given_chunks) and all(map(equal, found, given_chunks))
    names = [("Up", "Left"), (), ("Down",)]
    assert codecs.unpack_actions(*sent(*codecs.pack_actions(names))) == names


@given(st.lists(turns, min_size=1, max_size=3), st.data())
def test_a_header_that_lies_is_refused_and_never_crashes(
    given_turns: list[Turn], data: st.DataObject
) -> None:
    header, arrays = sent(*codecs.pack_turns(given_turns))
    key = data.draw(st.sampled_from(sorted(header)))
    header[key] = data.draw(
        st.sampled_from([None, 3, "x", {"a": 99}, [[7, 8]], [None] * 7, [["a", [9], []]]])
    )
    if header[key] is None and key in ("arrays", "states"):
        return  # which says that there are none
    with pytest.raises(EncodingError):
        codecs.unpack_turns(header, arrays)


def test_a_reward_that_is_not_a_number_is_carried_as_it_is() -> None:
    (found,) = codecs.unpack_turns(*sent(*codecs.pack_turns([Turn(reward=float("nan"))])))
    assert np.isnan(found.reward)


@pytest.mark.parametrize(
    "values", [[0.0, -0.0], [1, True], [1.0, 1], [False, False], ["a", "a"], [[1], [True]]]
)
def test_values_that_are_equal_in_all_turns_come_back_as_they_were(values: list[Any]) -> None:
    turns = [Turn(info={"value": value}) for value in values]
    found = [turn.info["value"] for turn in codecs.unpack_turns(*sent(*codecs.pack_turns(turns)))]
    assert list(map(repr, found)) == list(map(repr, values))


def test_numbers_of_numpy_in_info_become_numbers_and_objects_an_error() -> None:
    info = {"success": np.bool_(True), "process": np.float32(0.1), "inner": {"n": np.int64(3)}}
    odd = {"socket": object()}
    found, bad = codecs.unpack_turns(*sent(*codecs.pack_turns([Turn(info=info), Turn(info=odd)])))  # type: ignore[arg-type]
    assert found.info == {"success": True, "process": float(np.float32(0.1)), "inner": {"n": 3}}
    assert found.error is None
    assert isinstance(bad.error, EnvError) and "socket" in str(bad.error)


def test_errors_keep_their_kind_and_foreign_ones_their_name() -> None:
    assert type(codecs.unpack_error(codecs.pack_error(InputError("a")), WorkerError)) is InputError
    foreign = codecs.unpack_error(codecs.pack_error(ZeroDivisionError("b")), WorkerError)
    assert type(foreign) is WorkerError and str(foreign) == "ZeroDivisionError: b"
    for wrong in (["annotations", "x"], ["os", "x"], [7, "x"]):
        with pytest.raises(EncodingError):
            codecs.unpack_error(wrong, WorkerError)
