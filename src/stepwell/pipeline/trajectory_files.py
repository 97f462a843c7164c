"""Trajectories of a run on disk: one file per update, written whole, the oldest deleted first.

A file is a sequence of lengths and encoded trajectories (`core.encoding`), compressed. Together
the files stay under a limit; at least the newest one is kept.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from stepwell.core import EncodingError, Trajectory
from stepwell.core.encoding import decode_trajectory, encode_trajectory
from stepwell.monitors.files import write_whole

_SUFFIX = ".trajectories"
_LENGTH = struct.Struct("<I")


class TrajectoryFiles:
    """The `trajectories/` folder of a run."""

    def __init__(self, folder: Path, limit_mb: float) -> None:
        self.folder = folder
        self._limit = int(limit_mb * 1e6)
        self._sizes: dict[Path, int] = {path: path.stat().st_size for path in self.paths()}

    def paths(self) -> list[Path]:
        """Files, oldest first."""
        return sorted(self.folder.glob(f"update-*{_SUFFIX}"))

    def write(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        """Store the trajectories of an update."""
        if self._limit == 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        encoded = [encode_trajectory(trajectory) for trajectory in trajectories]
        data = zlib.compress(b"".join(_LENGTH.pack(len(item)) + item for item in encoded), level=1)
        path = self.folder / f"update-{update:06d}{_SUFFIX}"
        write_whole(path, data)
        self._sizes[path] = len(data)
        while sum(self._sizes.values()) > self._limit and len(self._sizes) > 1:
            oldest = min(self._sizes)
            oldest.unlink()
            del self._sizes[oldest]

    def rewind(self, update: int) -> None:
        """Forget what was stored after an update: it will be played again."""
        for path in self.paths():
            if int(path.name.removeprefix("update-").removesuffix(_SUFFIX)) > update:
                path.unlink()
                self._sizes.pop(path, None)


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of one file."""
    try:
        data = zlib.decompress(path.read_bytes())
    except zlib.error as error:
        raise EncodingError(f"{path} is damaged ({error}); delete it, the others are not affected") from error
    trajectories, place = [], 0
    while place < len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        place += _LENGTH.size
        trajectories.append(decode_trajectory(data[place : place + length]))
        place += length
    return trajectories
