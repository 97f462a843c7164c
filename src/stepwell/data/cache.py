"""A cache of products built from installed packages, without downloads: one file per product, complete or
absent.

A product's file name contains a digest of its inputs. Other inputs give another file, so an existing file is
never stale. The file is written to a temporary name and renamed, under a lock, so that several processes
build the same product only once. A file that its reader refuses is built again, with a warning.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stepwell.core.disk import hold_lock
from stepwell.core.errors import ConfigError, EncodingError

T = TypeVar("T")


def find_data_folder() -> Path:
    """`$STEPWELL_CACHE/data`, or `~/.cache/stepwell/data` if the variable is not set."""
    base = os.environ.get("STEPWELL_CACHE")
    return (Path(base).expanduser() if base else Path.home() / ".cache" / "stepwell") / "data"


def open_cached(
    name: str, build: Callable[[Path], object], read: Callable[[Path], T], root: Path | None = None
) -> T:
    """Read the file `name`; `build(path)` writes it first if it is absent or damaged.

    `read` raises `EncodingError` for an incomplete file.
    """
    path = (root or find_data_folder()) / name
    if path.exists():
        with contextlib.suppress(EncodingError):
            return read(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write to the cache {path.parent}: {error}; set STEPWELL_CACHE elsewhere"
        ) from error
    with hold_lock(path.parent / f".{path.name}.lock"):
        if path.exists():  # another process may have built it while this one waited
            try:
                return read(path)
            except EncodingError as error:
                warnings.warn(f"{path} is damaged ({error}); building it again", stacklevel=2)
        _build_file(path, build)
    return read(path)


def _build_file(path: Path, build: Callable[[Path], object]) -> None:
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    os.close(handle)
    try:
        build(Path(partial))
        os.chmod(partial, 0o644)  # mkstemp makes it private, but a cache may be shared
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
