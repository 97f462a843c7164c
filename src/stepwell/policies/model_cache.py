"""The disk cache of built-in and converted models.

A cached model is an ordinary Hugging Face directory with one more file, `stepwell.json`,
which lists the size and SHA-256 of every other file and is written last.

Invariants
* A directory under its final name is complete: it is built under a temporary name in the
  same folder and renamed. A process that dies during a build leaves only a temporary folder,
  which the next build of that name removes.
* Two processes never build the same model at once: a build holds a lock file, which the
  operating system releases when its holder dies.
* Every file is compared with the list on every reuse: by its hash, or by its inode, size and time of
  change if these are still those of the last comparison (`.NAME.checked` beside the directory). A file that
  changed within the last second is always hashed. A directory that fails is built again, with one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from stepwell.core.disk import hold_lock
from stepwell.core.errors import ModelError

MANIFEST = "stepwell.json"


def find_cache_root() -> Path:
    """Return `$STEPWELL_CACHE/models`, or `~/.cache/stepwell/models` if the variable is unset."""
    base = os.environ.get("STEPWELL_CACHE")
    return (Path(base).expanduser() if base else Path.home() / ".cache" / "stepwell") / "models"


def get_cached_model(name: str, build: Callable[[Path], object], root: Path | None = None) -> Path:
    """Return the directory of model `name`, built by `build(empty_directory)` if missing or damaged."""
    root = root or find_cache_root()
    final = root / name
    if find_damage(final) is None:
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot write models to {root}: {error}; set STEPWELL_CACHE elsewhere") from error
    with hold_lock(root / f".{name}.lock"):
        damage = find_damage(final)  # another process may have built it while this one waited
        if damage is not None:
            if final.exists():
                warnings.warn(f"cached model {final} is damaged ({damage}); building it again", stacklevel=2)
            _build_model(final, build)
    return final


def find_damage(directory: Path) -> str | None:
    """Describe what is wrong with a cached model; None when every file is as it was written."""
    try:
        listed = json.loads((directory / MANIFEST).read_text())["files"]
        checked, states = _read_checked(directory), {}
        for name, expected in listed.items():
            state = _read_state(directory / name, expected["sha256"])
            if state["size"] != expected["size"]:
                return f"{name} has another size than when it was written"
            if checked.get(name) != state and _hash_file(directory / name) != expected["sha256"]:
                return f"{name} has changed since it was written"
            states[name] = state
        if checked != states:
            _write_checked(directory, states)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def _read_state(path: Path, sha256: str) -> dict[str, int | str]:
    """What tells that a file is the one that was hashed: no write leaves its time of change as it was."""
    found = path.stat()
    return {"inode": found.st_ino, "size": found.st_size, "changed": found.st_ctime_ns, "sha256": sha256}


def _read_checked(directory: Path) -> dict[str, dict[str, int | str]]:
    """The files as they were when they were last hashed; none where this is not known."""
    try:
        kept = json.loads((directory.parent / f".{directory.name}.checked").read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write_checked(directory: Path, states: dict[str, dict[str, int | str]]) -> None:
    """Keep what was hashed, unless a file is so young that a later write could have the same time."""
    path = directory.parent / f".{directory.name}.checked"
    if any(int(state["changed"]) > time.time_ns() - 10**9 for state in states.values()):
        return
    with contextlib.suppress(OSError):  # a shared cache may be read-only
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(states))
        partial.replace(path)


def _build_model(final: Path, build: Callable[[Path], object]) -> None:
    prefix = f".{final.name}.partial-"
    for left_over in final.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        build(partial)
        files = {
            path.relative_to(partial).as_posix(): {"size": path.stat().st_size, "sha256": _hash_file(path)}
            for path in sorted(partial.rglob("*"))
            if path.is_file()
        }
        (partial / MANIFEST).write_text(json.dumps({"files": files}, indent=1))
        partial.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _hash_file(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
