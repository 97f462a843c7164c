"""Replays: a few episodes of a run, stored so that a person can watch them step by step.

`replays.json` holds what the policy saw, wrote and got, before and after training. Images are PNG
in base64, each stored once: an episode before training and one after it begin on the same board. Two
replays with the same `task_id` are shown side by side.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.core.disk import atomic_write
from stepwell.core.errors import EncodingError, InputError

FILE_NAME = "replays.json"
FORMAT = "stepwell replays 1"


@dataclass(slots=True)
class ReplayFrame:
    """One step of a replay: observation, reply and result.

    `reward_parts` are weighted, so that they add up to `reward`. `value` and `advantage` are None if
    the recipe has none. `problem` says why a reply was not followed.
    """

    observation: str
    reply: str
    actions: list[str]
    reward: float
    reward_parts: dict[str, float] = field(default_factory=dict)
    image_png: bytes | None = None
    value: float | None = None
    advantage: float | None = None
    problem: str = ""


@dataclass(slots=True)
class Replay:
    """One episode. `stage` is `before` or `after` training; the final image is the last one it showed."""

    task_id: str
    title: str
    status: str
    total_reward: float
    frames: list[ReplayFrame]
    stage: str = "after"
    final_observation: str = ""
    final_image_png: bytes | None = None
    judged: str = ""  # the judged outcome, in words


def encode_png(image: AnyArray) -> bytes:
    """A uint8 RGB image [H, W, 3] as PNG."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise InputError(f"an image must be uint8 RGB [H, W, 3], got {image.dtype} {image.shape}")
    height, width, _ = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def save_replays(path: Path, replays: list[Replay]) -> None:
    """Write all replays to `path` atomically."""
    atomic_write(path, json.dumps(encode_replays(replays)))


def encode_replays(replays: list[Replay]) -> dict[str, Any]:
    """The content of `replays.json`: images in one list, referred to by index."""
    images: dict[bytes, int] = {}

    def index(png: bytes | None) -> int | None:
        return None if png is None else images.setdefault(png, len(images))

    items = []
    for replay in replays:
        item = asdict(replay)
        item["final_image"] = index(item.pop("final_image_png"))
        for frame in item["frames"]:
            frame["image"] = index(frame.pop("image_png"))
        items.append(item)
    encoded = [base64.b64encode(png).decode("ascii") for png in images]
    return {"format": FORMAT, "images": encoded, "replays": items}


def load_replays(path: Path) -> list[Replay]:
    """The replays of a file; a missing file has none, a damaged one is an error."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        images = [base64.b64decode(item, validate=True) for item in content["images"]]
        return [_decode_replay(item, images) for item in content["replays"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, binascii.Error) as error:
        raise EncodingError(f"{path} is damaged ({error}); delete it, or create it again") from error


def _decode_replay(item: dict[str, Any], images: list[bytes]) -> Replay:
    def find_image(index: int | None) -> bytes | None:
        return None if index is None else images[index]

    frames = [ReplayFrame(image_png=find_image(frame.pop("image")), **frame) for frame in item.pop("frames")]
    return Replay(final_image_png=find_image(item.pop("final_image")), frames=frames, **item)
