"""The blob store: bytes stored once, named by the hash of their content.

Images are by far the largest part of a trajectory, and the same image appears again and again (in
every step of a dialogue, in every sibling of a group). A record therefore holds only an image's
content hash; the pixels are stored here.

Invariants
* The name of a blob is the hash of its bytes, so writing it twice stores it once. What is read is
  checked: damage is an `EncodingError`, never a wrong image. Files are compressed, but the name
  comes from the uncompressed bytes, so it does not depend on the compressor.
* A blob is either complete or absent. It is written to a temporary file and renamed, so that a killed
  writer leaves at most a stray `.tmp`, which `sweep` removes. File and folders are flushed to disk
  before `put` returns, unless the pool need not survive a power loss (`flush=False`).
* Storing the same content again repairs a damaged blob: `put` checks what is stored before it trusts it.
* Reading creates no folder and changes nothing, so a read-only store can be read.
* Any number of processes may write at the same time; the last rename wins with equal bytes.
* Storing an existing blob resets its age, and `remove_old` never removes a blob whose age was reset
  meanwhile: an image that is stored and then referred to is found.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.core.disk import flush_file, make_folder_durably, rename_durably
from stepwell.core.errors import ConfigError, EncodingError, InfraError, InputError, StepwellError
from stepwell.core.ids import hash_bytes, is_content_hash

_NUM_FLUSHED = 65536  # blobs remembered as flushed, so that each is flushed about once
_IMAGE_HEADER = "swimg1 {height} {width}\n"


class BlobStore:
    """Blobs in one folder, two levels deep so that no directory grows too large."""

    def __init__(self, root: Path | str, *, flush: bool = True) -> None:
        self.root = Path(root)
        self._flush = flush
        self._flush_once = lru_cache(_NUM_FLUSHED)(self._flush_stored)

    def get_path(self, key: str) -> Path:
        """The path of the blob `key`, whether or not it exists."""
        if not is_content_hash(key):
            raise InputError(f"{key!r} is not a content hash; blobs are named by the hash `put` returned")
        return self.root / key[:2] / key

    def put(self, data: bytes) -> str:
        """Store `data`, unless it is stored already, and return its key."""
        key = hash_bytes(data)
        try:
            if not self.refresh(key):
                self._write_blob(key, data)
        except OSError as error:
            raise self._make_write_error(error) from error
        return key

    def _write_blob(self, key: str, data: bytes) -> None:
        path = self.get_path(key)
        make_folder = make_folder_durably if self._flush else _make_folder
        make_folder(path.parent)
        temporary = path.parent / f"{key}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        try:
            temporary.write_bytes(zlib.compress(data, level=1))
            if self._flush:
                flush_file(temporary)
                rename_durably(temporary, path)
                flush_file(self.root)  # another writer may have just created the folder in between
            else:
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _flush_stored(self, key: str) -> None:
        """Flush a blob that another store may have written without flushing."""
        path = self.get_path(key)
        for part in (path, path.parent, self.root):
            flush_file(part)

    def _make_write_error(self, error: OSError) -> StepwellError:
        what = f"cannot store an image in {self.root} ({error.strerror or error})"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return ConfigError(f"{what}: the folder is read-only; give it write permission or choose another")
        return InfraError(f"{what}: free some space or check the disk")

    def get(self, key: str) -> bytes:
        """The bytes stored under `key`, checked against it."""
        try:
            data = self._read_blob(key)
        except FileNotFoundError:
            raise KeyError(f"blob {key} is not in {self.root}") from None
        if data is None:
            raise EncodingError(
                f"blob {key} in {self.root} is damaged; store the same content again to repair it"
            )
        return data

    def _read_blob(self, key: str) -> bytes | None:
        """The bytes of a blob; None if they do not match its name."""
        stored = self.get_path(key).read_bytes()
        try:
            data = zlib.decompress(stored)
        except zlib.error:
            return None
        return data if hash_bytes(data) == key else None

    def __contains__(self, key: str) -> bool:
        return self.get_path(key).exists()

    def refresh(self, key: str) -> bool:
        """Reset the age of a blob, as storing it would; False if it is missing or damaged."""
        path = self.get_path(key)
        try:
            if self._read_blob(key) is None:
                return False  # not touched: the removal of old blobs must see its real age
            os.utime(path)
            if self._flush:
                self._flush_once(key)
        except FileNotFoundError:
            return False
        return True

    def keys(self) -> Iterator[str]:
        """Every key in the store, in no particular order."""
        for path in self.root.glob("??/*"):
            if is_content_hash(path.name):
                yield path.name

    def count_bytes(self) -> int:
        """Bytes on disk of all blobs."""
        return sum(self.get_path(key).stat().st_size for key in self.keys())

    def remove(self, key: str) -> None:
        """Remove a blob; removing a missing one is fine."""
        self.get_path(key).unlink(missing_ok=True)

    def remove_old(self, key: str, limit_s: float) -> bool:
        """Remove a blob that nobody stored since `limit_s` (seconds since 1970); returns whether it did."""
        path = self.get_path(key)
        aside = path.parent / f"{key}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        try:
            if path.stat().st_mtime >= limit_s:
                return False
            path.rename(aside)  # a later writer creates a new blob; an earlier one has touched this one
        except FileNotFoundError:
            return False
        if aside.stat().st_mtime >= limit_s:
            aside.replace(path)
            return False
        aside.unlink()
        return True

    def sweep(self, older_than_s: float = 3600.0) -> int:
        """Remove temporary files of killed writers; returns how many."""
        limit = time.time() - older_than_s
        stray = [path for path in self.root.glob("??/*.tmp") if path.stat().st_mtime < limit]
        for path in stray:
            path.unlink(missing_ok=True)
        return len(stray)

    def put_image(self, image: AnyArray) -> str:
        """Store a uint8 RGB image [H, W, 3]; equal pixels always give the same key."""
        array = np.ascontiguousarray(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
            raise InputError(f"an image must be uint8 RGB [H, W, 3], got {array.dtype} {array.shape}")
        header = _IMAGE_HEADER.format(height=array.shape[0], width=array.shape[1])
        return self.put(header.encode() + array.tobytes())

    def get_image(self, key: str) -> AnyArray:
        """The image stored under `key`, read-only."""
        header, _, pixels = self.get(key).partition(b"\n")
        try:
            name, height, width = header.decode("ascii").split(" ")
            if name != "swimg1":
                raise ValueError(name)
            return np.frombuffer(pixels, np.uint8).reshape(int(height), int(width), 3)
        except ValueError as error:
            raise EncodingError(f"blob {key} is not an image") from error


def _make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
