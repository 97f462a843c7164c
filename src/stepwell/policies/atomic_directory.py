"""Atomic writes of directories: written under a temporary name, flushed, then renamed.

The parent folder is flushed too: after a power cut there is the old directory or the new one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.core import ModelError
from stepwell.core.disk import flush_tree, make_folder_durably, rename_durably


@contextmanager
def write_directory_atomically(path: Path) -> Iterator[Path]:
    """Yield a new directory that replaces `path` only if everything succeeds."""
    make_folder_durably(path.parent)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield fresh
        fresh.chmod(0o755)
        flush_tree(fresh)
        _replace_directory(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _replace_directory(fresh: Path, path: Path) -> None:
    if not path.exists():
        rename_durably(fresh, path)
        return
    if not path.is_dir():
        raise ModelError(f"{path} is a file; give a directory to save the model in")
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / path.name)
    rename_durably(fresh, path)
    shutil.rmtree(old)
