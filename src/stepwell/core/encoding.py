"""Steps and trajectories as bytes: compact, exact, and safe to read from untrusted sources.

Layout of one record:

    magic "SWEL" | format u8 | kind u8 | stored u32 | raw u32 | digest 16 bytes | payload

The compressed payload (level 0 if compression saves little) is a JSON header followed by the raw bytes of
every array, in the order of the header. Nothing is ever unpickled.

Invariants
* `decode(encode(x)) == x`, bit for bit (floats keep every bit; arrays keep dtype and shape).
* Any damage raises `EncodingError`: the digest covers the whole payload, and the lengths must match
  exactly. The error for another format version names the version.
* A prompt that continues the previous step's prompt and action is stored as its new part only, so
  that an append-only dialogue of n turns takes O(n) space, not O(n²).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from stepwell.core.arrays import AnyArray, IntArray, count_common_prefix
from stepwell.core.errors import EncodingError, InputError, StepwellError
from stepwell.core.outcome import Outcome
from stepwell.core.step import (
    Action,
    ArrayAction,
    ArrayState,
    FinishReason,
    ImageSpan,
    Sampling,
    State,
    Step,
    TextAction,
    TextState,
    TokenAction,
    TokenState,
)
from stepwell.core.task import Task
from stepwell.core.trajectory import Status, Trajectory
from stepwell.core.versions import VersionSpan

MAGIC = b"SWEL"
FORMAT = 1
KIND_STEP, KIND_TRAJECTORY = 1, 2
MIN_COMPRESSED_BYTES = 1024  # of text and integers (floats hardly shrink); below that it saves little
Built = TypeVar("Built")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_HEAD = struct.Struct("<4sBBII16s")
_HEADER_LENGTH = struct.Struct("<I")
_PLAIN = frozenset([type(None), bool, int, str])
_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"])


def encode_step(step: Step) -> bytes:
    """One step as bytes."""
    writer = _Writer()
    return writer.write_record(KIND_STEP, writer.write_step(step))


def decode_step(data: bytes) -> Step:
    """The step `encode_step` wrote; damaged or foreign bytes raise `EncodingError`."""
    reader = _Reader(data, KIND_STEP)
    return reader.finish(lambda: reader.read_step(reader.header))


def read_action_text(data: bytes) -> str:
    """The text of a stored step's action; "" for a robot's. Reads only the header, and checks no digest."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data[_HEAD.size :], 4096)
        end = _HEADER_LENGTH.size + _HEADER_LENGTH.unpack_from(raw)[0]
        if len(raw) < end:
            raw += inflater.decompress(inflater.unconsumed_tail, end - len(raw))
        header = json.loads(raw[_HEADER_LENGTH.size : end])
        return str(header["action"].get("text") or _read_old_reply(header["info"]))
    except (zlib.error, struct.error, ValueError, KeyError, AttributeError) as error:
        raise EncodingError(f"the header of a record cannot be read: {error!r}") from error


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """One trajectory with all its steps as bytes."""
    writer = _Writer()
    return writer.write_record(KIND_TRAJECTORY, writer.write_trajectory(trajectory))


def decode_trajectory(data: bytes) -> Trajectory:
    """The trajectory `encode_trajectory` wrote; damaged or foreign bytes raise `EncodingError`."""
    reader = _Reader(data, KIND_TRAJECTORY)
    return reader.finish(lambda: reader.read_trajectory(reader.header))


class _Writer:
    """Turns objects into header values and collects their arrays."""

    def __init__(self) -> None:
        self.arrays: list[AnyArray] = []
        self.previous_ids: IntArray | None = None

    def write_record(self, kind: int, header: dict[str, Any]) -> bytes:
        text = _ENCODER.encode(header).encode()
        raw = b"".join([_HEADER_LENGTH.pack(len(text)), text, *(array.tobytes() for array in self.arrays)])
        float_bytes = sum(array.nbytes for array in self.arrays if array.dtype.kind == "f")
        stored = zlib.compress(raw, level=0 if len(raw) - float_bytes < MIN_COMPRESSED_BYTES else 1)
        digest = hashlib.blake2b(stored, digest_size=16).digest()
        return _HEAD.pack(MAGIC, FORMAT, kind, len(stored), len(raw), digest) + stored

    def write_array(self, array: AnyArray) -> list[Any]:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if little.dtype.str not in _DTYPES:
            raise InputError(
                f"arrays of dtype {array.dtype} cannot be stored; convert to a standard number type"
            )
        self.arrays.append(little)
        return [little.dtype.str, list(array.shape)]

    def write_state(self, state: State) -> dict[str, Any]:
        if isinstance(state, TextState):
            return {"text": True}
        if isinstance(state, ArrayState):
            named = {name: self.write_array(array) for name, array in state.arrays.items()}
            return {"arrays": named, "instruction": state.instruction}
        shared = 0 if self.previous_ids is None else count_common_prefix(self.previous_ids, state.prompt_ids)
        images = [[span.image, span.start, span.length] for span in state.images]
        return {"shared": shared, "ids": self.write_array(state.prompt_ids[shared:]), "images": images}

    def write_action(self, action: Action) -> dict[str, Any]:
        if isinstance(action, TokenAction):
            return {"ids": self.write_array(action.action_ids), "text": action.text}
        if isinstance(action, TextAction):
            return {"text": action.text}
        chunk = self.write_array(action.chunk)
        draws = {name: self.write_array(array) for name, array in action.draws.items()}
        return {"chunk": chunk, "num_units": action.num_units, "draws": draws}

    def write_step(self, step: Step) -> dict[str, Any]:
        header = {
            "state": self.write_state(step.state),
            "action": self.write_action(step.action),
            "logprobs": self.write_array(step.behavior_logprobs),
            "reward": step.reward,
            "parts": _check_json(step.reward_parts, "reward_parts"),
            "sampling": [
                step.sampling.temperature,
                step.sampling.top_p,
                step.sampling.seed,
                step.sampling.finish_reason.value,
            ],
            "version": [step.policy_version.first, step.policy_version.last],
            "anchor": step.anchor,
            "info": _check_json(step.info, "info"),
        }
        if step.position_mark is not None:
            header["positions"] = step.position_mark
        if isinstance(step.state, TokenState) and isinstance(step.action, TokenAction):
            self.previous_ids = np.concatenate([step.state.prompt_ids, step.action.action_ids])
        return header

    def write_trajectory(self, trajectory: Trajectory) -> dict[str, Any]:
        task, outcome = trajectory.task, trajectory.outcome
        judged = None if outcome is None else [outcome.success_probability, outcome.source, outcome.judge]
        return {
            "id": trajectory.id,
            "task": {**task.to_json(), "content": _check_json(task.content, "task.content")},
            "steps": [self.write_step(step) for step in trajectory.steps],
            "status": trajectory.status.value,
            "group": trajectory.group,
            "final": None if trajectory.final_state is None else self.write_state(trajectory.final_state),
            "error": trajectory.error,
            "timings": _check_json(trajectory.timings, "timings"),
            "info": _check_json(trajectory.info, "info"),
            **({} if judged is None else {"outcome": judged}),
        }


class _Reader:
    """The reverse of `_Writer`: checks the envelope, then reads arrays in the same order."""

    def __init__(self, data: bytes, kind: int) -> None:
        raw = _open_envelope(data, kind)
        if len(raw) < _HEADER_LENGTH.size:
            raise EncodingError("record has no header; it is truncated")
        (length,) = _HEADER_LENGTH.unpack_from(raw)
        start = _HEADER_LENGTH.size + length
        try:
            self.header: dict[str, Any] = json.loads(raw[_HEADER_LENGTH.size : start])
        except ValueError as error:
            raise EncodingError(f"record header is not valid JSON: {error}") from error
        self.raw = raw
        self.offset = start
        self.previous_ids: IntArray | None = None

    def finish(self, build: Callable[[], Built]) -> Built:
        try:
            result = build()
        except EncodingError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, StepwellError) as error:
            raise EncodingError(f"record does not match its kind: {error!r}") from error
        if self.offset != len(self.raw):
            raise EncodingError(f"record has {len(self.raw) - self.offset} bytes left over")
        return result

    def read_array(self, described: list[Any]) -> AnyArray:
        name, shape = described
        if name not in _DTYPES or any(not isinstance(n, int) or n < 0 for n in shape):
            raise EncodingError(f"record describes an array of dtype {name!r}, shape {shape}")
        dtype = np.dtype(name)
        size = math.prod(shape) * dtype.itemsize
        if self.offset + size > len(self.raw):
            raise EncodingError("record ends inside an array; it is truncated")
        array = np.frombuffer(self.raw, dtype, math.prod(shape), self.offset).reshape(shape)
        self.offset += size
        return array

    def read_state(self, value: dict[str, Any]) -> State:
        if "text" in value or value == {"arrays": {}, "instruction": ""}:  # the latter in older records
            return TextState()
        if "arrays" in value:
            named = {name: self.read_array(array) for name, array in value["arrays"].items()}
            return ArrayState(named, value["instruction"])
        shared, ids = value["shared"], self.read_array(value["ids"])
        if shared:
            if self.previous_ids is None or not 0 < shared <= self.previous_ids.size:
                raise EncodingError(f"record shares {shared} prompt ids with a step that is missing")
            ids = np.concatenate([self.previous_ids[:shared], ids])
        return TokenState(ids, tuple(ImageSpan(*span) for span in value["images"]))

    def read_action(self, value: dict[str, Any]) -> Action:
        if "ids" in value:
            return TokenAction(self.read_array(value["ids"]), value["text"])
        if "text" in value:
            return TextAction(value["text"])
        chunk = self.read_array(value["chunk"])
        draws = {name: self.read_array(array) for name, array in value["draws"].items()}
        return ArrayAction(chunk, value["num_units"], draws)

    def read_step(self, value: dict[str, Any]) -> Step:
        state = self.read_state(value["state"])
        action = self.read_action(value["action"])
        if isinstance(state, TextState) and isinstance(action, ArrayAction) and not action.chunk.size:
            action = TextAction(_read_old_reply(value["info"]))
        temperature, top_p, seed, reason = value["sampling"]
        if isinstance(state, TokenState) and isinstance(action, TokenAction):
            self.previous_ids = np.concatenate([state.prompt_ids, action.action_ids])
        return Step(
            state=state,
            action=action,
            behavior_logprobs=self.read_array(value["logprobs"]),
            reward=value["reward"],
            reward_parts=value["parts"],
            sampling=Sampling(temperature, top_p, seed, FinishReason(reason)),
            policy_version=VersionSpan(*value["version"]),
            anchor=value["anchor"],
            info=value["info"],
            position_mark=value.get("positions"),
        )

    def read_trajectory(self, value: dict[str, Any]) -> Trajectory:
        return Trajectory(
            task=Task.from_json(value["task"]),
            steps=[self.read_step(step) for step in value["steps"]],
            status=Status(value["status"]),
            group=value["group"],
            final_state=None if value["final"] is None else self.read_state(value["final"]),
            error=value["error"],
            timings=value["timings"],
            info=value["info"],
            id=value["id"],
            outcome=Outcome(*value["outcome"]) if "outcome" in value else None,
        )


def _read_old_reply(info: dict[str, Any]) -> str:
    """The reply of a step that was stored before there were text actions."""
    reply = info.get("reply", "")
    return str(reply.get("text", "") if isinstance(reply, dict) else reply)


def _open_envelope(data: bytes, kind: int) -> bytes:
    if len(data) < _HEAD.size:
        raise EncodingError(f"record has {len(data)} bytes, fewer than its envelope of {_HEAD.size}")
    magic, version, found, stored, raw, digest = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise EncodingError("not a Stepwell record (wrong first bytes)")
    if version != FORMAT:
        raise EncodingError(
            f"record has format {version}, this Stepwell reads format {FORMAT}; use the matching version"
        )
    if found != kind:
        names = {KIND_STEP: "a step", KIND_TRAJECTORY: "a trajectory"}
        raise EncodingError(f"record is {names.get(found, 'of unknown kind')}, not {names[kind]}")
    payload = data[_HEAD.size :]
    if len(payload) != stored:
        raise EncodingError(f"record has {len(payload)} payload bytes, but {stored} were written")
    if hashlib.blake2b(payload, digest_size=16).digest() != digest:
        raise EncodingError("record is damaged: its digest does not match")
    inflater = zlib.decompressobj()
    try:
        result = inflater.decompress(payload, raw + 1)
    except zlib.error as error:
        raise EncodingError(f"record cannot be decompressed: {error}") from error
    if len(result) != raw or not inflater.eof:
        raise EncodingError(f"record unpacks to {len(result)} bytes, but {raw} were written")
    return result


def _check_json(value: Any, *field: str | int) -> Any:
    """Return `value` if JSON restores it unchanged; JSON would silently turn tuples into lists.

    `field` is its place: a name, then keys and indices. Runs for every stored step, so plain values
    come first.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise InputError(
                    f"{_format_place(field)} has a key that is not a string; JSON cannot store it"
                )
        return {key: _check_json(item, *field, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_check_json(item, *field, index) for index, item in enumerate(value)]
    if isinstance(value, float):
        raise InputError(f"{_format_place(field)} is {value}; store None or a string instead")
    raise InputError(f"{_format_place(field)} is a {kind.__name__}; only JSON values can be stored")


def _format_place(field: tuple[str | int, ...]) -> str:
    return f"{field[0]}{''.join(f'[{key!r}]' for key in field[1:])}"
