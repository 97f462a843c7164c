"""The files of a checkpoint: hashed, verified, and shared with the best one.

    write_tensors ─► trainer.pt, hashed in the pass that writes it
    write_marks   ─► complete.json: {"trainer.pt": "2152687153:sha256:9f2c…", …}
    link_weights  ─► best/: hard links to the weights of a checkpoint

A mark is size, name of the hash and its value. Most CPUs compute SHA-256 in hardware, more than twice as fast
as BLAKE2. Marks of earlier versions, `size:value`, are BLAKE2 and are still verified.

Invariant: no step holds Python's lock for long, so that training can go on beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from stepwell.policies.atomic_directory import write_directory_atomically

COMPLETE = "complete.json"
TRAINER = "trainer.pt"
_HASH = "sha256"
_CHUNK = 16 << 20


class HashedFile:
    """A file that is hashed as it is written. It keeps the first error for `finish`.

    (The writer of torch that calls `write` must not see an error: it tries to write again as it is freed.)
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._hash = hashlib.new(_HASH, usedforsecurity=False)
        self._size = 0
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of it."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view) if self._error is None else 0, _CHUNK):
            part = view[start : start + _CHUNK]
            self._hash.update(part)
            self._write_part(part)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def finish(self) -> str:
        """Close the file; returns its mark."""
        self._file.close()
        if self._error is not None:
            raise self._error
        return _format_mark(self._size, self._hash.hexdigest())

    def _write_part(self, part: memoryview) -> None:
        try:
            while part and self._error is None:
                written = self._file.write(part) or 0
                self._size += written
                part = part[written:]
        except OSError as error:
            self._error = error


def write_tensors(path: Path, state: Mapping[str, Any]) -> str:
    """Write a nest of tensors for `torch.load`; returns its mark."""
    file = HashedFile(path)
    try:
        torch.save(dict(state), cast(IO[bytes], file))
    finally:
        mark = file.finish()
    return mark


def write_marks(folder: Path, known: Mapping[str, str]) -> None:
    """Write `complete.json`: a mark of every file. Those that are `known` are not read again."""
    marks = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name != COMPLETE:  # of the checkpoint it started from
            marks[name] = known.get(name) or _format_mark(path.stat().st_size, _hash_file(path, _HASH))
    (folder / COMPLETE).write_text(json.dumps(marks, indent=1))


def find_damage(path: Path) -> str | None:
    """Describe what is wrong with a checkpoint's files; None if nothing is."""
    listing = path / COMPLETE
    if not listing.exists():
        return f"{COMPLETE} is missing: it was not written to the end"
    try:
        marks = json.loads(listing.read_text())
    except ValueError:
        return f"{COMPLETE} is not readable"
    for name, mark in marks.items():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if not _matches_mark(file, mark):
            return f"{name} has changed or is cut short"
    return None


def link_weights(source: Path, target: Path) -> None:
    """Make `target` a checkpoint with the policy of `source`: weights are hard links, small files copies."""
    marks = json.loads((source / COMPLETE).read_text())
    shared = {name: mark for name, mark in marks.items() if name != TRAINER and not name.endswith(".distcp")}
    shared = {name: mark for name, mark in shared.items() if not name.startswith("shards/")}
    with write_directory_atomically(target) as fresh:
        for name in shared:
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".safetensors"):
                _link_file(source / name, fresh / name)
            else:
                shutil.copyfile(source / name, fresh / name)
        (fresh / COMPLETE).write_text(json.dumps(shared, indent=1))


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _matches_mark(path: Path, mark: str) -> bool:
    size, _, rest = mark.partition(":")
    kind, _, value = rest.rpartition(":")
    return str(path.stat().st_size) == size and _hash_file(path, kind) == value


def _format_mark(size: int, value: str) -> str:
    return f"{size}:{_HASH}:{value}"


def _hash_file(path: Path, kind: str) -> str:
    """The hash of a file's bytes; without a kind that of earlier versions."""
    with path.open("rb") as file:
        if not kind:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
