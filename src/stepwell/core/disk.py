"""Files and folders that survive a power cut: what is renamed or made is flushed with its folder.

Flushing a file keeps its bytes. Its name is an entry of the folder above, which has to be flushed as
well, or a power cut takes the whole file. Whoever promises durability renames and makes folders here.
"""

from __future__ import annotations

import os
from pathlib import Path


def flush_file(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path) -> None:
    """Wait until a folder with everything below it is on the disk."""
    for path in folder.rglob("*"):
        flush_file(path)
    flush_file(folder)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one folder, replacing `target`; the new name is on the disk when this returns."""
    source.replace(target)
    flush_file(target.parent)


def make_folder_durably(path: Path) -> None:
    """Make a folder with the missing ones above it; their names are on the disk when this returns."""
    if path.is_dir():
        return
    make_folder_durably(path.parent)
    path.mkdir(exist_ok=True)
    flush_file(path.parent)
