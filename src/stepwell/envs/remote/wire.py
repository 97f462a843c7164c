"""The wire format between an environment's host and its caller.

Frames and the codecs of tasks, actions and turns are those of the simulators (`rollout/workers`): one
protocol over any transport. This module adds descriptions of environments, and images as PNG.

Invariants
* `decode_images(encode_images(frame))` has the arrays of `frame`, bit for bit: PNG is lossless.
* `read_description(write_description(description)) == description`.
"""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from stepwell.core import (
    ActionSpace,
    ArraySpec,
    EncodingError,
    EnvDescription,
    RobotEnvDescription,
    StateForm,
    ToolSchema,
)
from stepwell.core.arrays import AnyArray
from stepwell.core.env_description import HISTORY_LINE_CHARS, ExampleTurn
from stepwell.core.frames import Frame, decode, to_bytes
from stepwell.core.state_vocabulary import StateVocabulary
from stepwell.envs.codecs import (
    pack_actions,
    pack_error,
    pack_plain_turn,
    pack_tasks,
    pack_turns,
    read_turn_call,
    unpack_actions,
    unpack_error,
    unpack_plain_turn,
    unpack_tasks,
    unpack_turns,
    write_turn_call,
)

CONTENT_TYPE = "application/vnd.stepwell.frame"
PNGS = "pngs"  # numbers of the arrays that are PNG files

__all__ = [
    "CONTENT_TYPE",
    "Frame",
    "decode",
    "decode_images",
    "encode_images",
    "encode_png",
    "pack_actions",
    "pack_error",
    "pack_plain_turn",
    "pack_tasks",
    "pack_turns",
    "read_description",
    "read_turn_call",
    "to_bytes",
    "unpack_actions",
    "unpack_error",
    "unpack_plain_turn",
    "unpack_tasks",
    "unpack_turns",
    "write_description",
    "write_turn_call",
]


def encode_images(frame: Frame) -> Frame:
    """Encode every image among the frame's arrays as the bytes of a PNG file."""
    arrays = list(frame.arrays)
    found = [number for number, array in enumerate(arrays) if _is_image(array)]
    for number in found:
        arrays[number] = np.frombuffer(encode_png(arrays[number]), np.uint8)
    return replace(frame, header={**frame.header, PNGS: found}, arrays=arrays)


def decode_images(frame: Frame) -> Frame:
    """Decode the PNG files of a frame."""
    if PNGS not in frame.header:
        return frame
    arrays, numbers = list(frame.arrays), frame.header[PNGS]
    if type(numbers) is not list or any(type(n) is not int or not 0 <= n < len(arrays) for n in numbers):
        raise EncodingError(f"the frame says that arrays {numbers!r} of {len(arrays)} are PNG files")
    for number in numbers:
        arrays[number] = _decode_png(arrays[number])
    header = {name: value for name, value in frame.header.items() if name != PNGS}
    return replace(frame, header=header, arrays=arrays)


def encode_png(pixels: AnyArray) -> bytes:
    """Encode an image as a PNG file; optimised for speed, not for size."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()


def _decode_png(file: AnyArray) -> AnyArray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file.tobytes()), formats=["PNG"]) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise EncodingError(f"an image of the frame is not a PNG file: {error}") from error
    pixels.setflags(write=False)
    return pixels


def _is_image(array: AnyArray) -> bool:
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size > 0


def write_description(description: EnvDescription | RobotEnvDescription) -> dict[str, Any]:
    """An environment as JSON."""
    described = asdict(description)
    if isinstance(description, EnvDescription):
        described["examples"] = {
            form.value: asdict(example) for form, example in description.examples.items()
        }
    return described


def read_description(value: dict[str, Any]) -> EnvDescription | RobotEnvDescription:
    """The environment of `write_description`."""
    try:
        if "action_dim" in value:
            specs = {n: ArraySpec(tuple(s["shape"]), s["dtype"]) for n, s in value["arrays"].items()}
            return RobotEnvDescription(value["name"], specs, value["action_dim"], value["max_actions"])
        actions = value["actions"]
        tools = tuple(ToolSchema(**tool) for tool in actions.get("tools", ()))
        names = ActionSpace(
            tuple(actions["names"]),
            actions["max_per_turn"],
            actions["separator"],
            tools,
            actions.get("answer", ""),
        )
        examples = {StateForm(form): ExampleTurn(**example) for form, example in value["examples"].items()}
        vocabulary = _read_vocabulary(value.get("vocabulary"))
        chars = value.get("history_line_chars", HISTORY_LINE_CHARS)
        return EnvDescription(
            value["name"], value["guide"], names, value["max_turns"], examples, vocabulary, chars
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EncodingError(f"the host's description of its environment is invalid: {error!r}") from error


def _read_vocabulary(value: dict[str, Any] | None) -> StateVocabulary | None:
    if value is None:
        return None
    words = {
        field: {name: tuple(texts) for name, texts in value[field].items()}
        for field in ("names", "symbols", "synonyms")
    }
    pairs = tuple((kind, seen_from) for kind, seen_from in value["pairs"])
    return StateVocabulary(**{**value, **words, "pairs": pairs, "fixed": tuple(value["fixed"])})
