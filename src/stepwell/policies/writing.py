"""Directories that are complete or not there: written beside their place, flushed, and renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.core import ModelError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A fresh directory that becomes `path`, replacing what was there, only if all goes well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield fresh
        _flush(fresh)
        fresh.chmod(0o755)
        _replace(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _flush(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())


def _replace(fresh: Path, path: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    if not path.is_dir():
        raise ModelError(f"{path} is a file; give a directory to save the model in")
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / path.name)
    fresh.rename(path)
    shutil.rmtree(old)
