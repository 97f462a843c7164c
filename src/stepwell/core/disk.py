"""Files and folders that survive a power loss: whatever is renamed or created is flushed with its folder.

Flushing a file saves its bytes. Its name is an entry of the parent folder, which must be flushed as
well, or a power loss can remove the whole file. Code that promises durability renames files and
creates folders with these functions.
"""

from __future__ import annotations

import os
from pathlib import Path


def flush_file(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path) -> None:
    """Wait until a folder and everything in it are on disk."""
    for path in folder.rglob("*"):
        flush_file(path)
    flush_file(folder)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one folder, replacing `target`; the new name is on disk when this returns."""
    source.replace(target)
    flush_file(target.parent)


def make_folder_durably(path: Path) -> None:
    """Create a folder with its missing parents; their names are on disk when this returns."""
    if path.is_dir():
        return
    make_folder_durably(path.parent)
    path.mkdir(exist_ok=True)
    flush_file(path.parent)
