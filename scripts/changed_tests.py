"""Tests of what was changed, nearest first: what `make test-fast` hands to pytest.

    python scripts/changed_tests.py [BASE]        one test file a line; BASE is a commit, main by default

A file is changed if it differs from the point where this branch left BASE (on BASE itself: from the last
commit), or if git does not know it yet. A test file's distance to a change is the number of imports
between them: 0 is the changed test itself, 1 a test that imports a changed module or names a changed file,
2 one that imports a module which imports it, and so on. At equal distance the tests of the changed folder
come first. Nothing is printed if nothing was changed. At most `MAX_FILES` are printed, the nearest: each of
pytest's processes imports every file that it is handed, and all of them would take longer than the tests of
the nearest. How many are left out is told on standard error.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOP_FOLDERS = {"stepwell": ROOT / "src" / "stepwell", "tests": ROOT / "tests"}
IMPORT = re.compile(
    r"^[ \t]*(?:from ((?:stepwell|tests)[\w.]*) import (\([^)]*\)|[^\n]*)|import ((?:stepwell|tests)[\w.]*))",
    re.M,
)

MAX_FILES = 60
TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)*", re.M)


def list_changes(base: str) -> set[Path]:
    """Changed, added and deleted files, against where this branch left `base` and in the working tree."""
    fork = _read_git("merge-base", base, "HEAD") or ["HEAD"]
    committed = _read_git("diff", "--name-only", fork[0])
    unknown = _read_git("ls-files", "--others", "--exclude-standard")
    changes = {*committed, *unknown} or {*_read_git("diff", "--name-only", "HEAD~1")}
    return {ROOT / name for name in changes}


def _read_git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


@cache
def read_imports(path: Path) -> frozenset[Path]:
    """Files of ours that a file imports anywhere in it, the packages above them included."""
    found: set[Path] = set()
    text = TYPES_ONLY.sub("", path.read_text())
    for module, names, alone in IMPORT.findall(text):  # ten times as fast as a syntax tree
        members = re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names))
        for name in [alone or module, *(f"{module}.{member}" for member in members)]:
            found |= find_files(name)
    return frozenset(found - {path})


@cache
def find_files(module: str) -> frozenset[Path]:
    """The file of a module and the `__init__.py` of every package above it; empty for foreign modules."""
    first, *parts = module.split(".")
    if first not in TOP_FOLDERS:
        return frozenset()
    place, found = TOP_FOLDERS[first], set[Path]()
    for part in [None, *parts]:
        place = place / part if part else place
        found |= {path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()}
    return frozenset(found)


def measure_distances(changes: Iterable[Path]) -> dict[Path, int]:
    """How many imports every file of ours is away from a change; those not reached are left out."""
    files = [path for folder in TOP_FOLDERS.values() for path in folder.rglob("*.py")]
    importers: dict[Path, set[Path]] = {}
    for path in files:
        for imported in read_imports(path) | _find_conftests(path):
            importers.setdefault(imported, set()).add(path)
    changed = set(changes)
    distances = {path: 0 for path in files if path in changed}
    others = {path.name for path in changed if path.suffix != ".py"}
    for path in files:
        is_test = path.is_relative_to(TOP_FOLDERS["tests"])
        if is_test and path not in distances and any(name in path.read_text() for name in others):
            distances[path] = 1
    edge = sorted(distances, key=distances.__getitem__)
    for path in edge:  # grows while it is walked
        for importer in sorted(importers.get(path, ())):
            if importer not in distances:
                distances[importer] = distances[path] + 1
                edge.append(importer)
    return distances


def _find_conftests(path: Path) -> set[Path]:
    """The conftest.py files that pytest loads for a test file, but the topmost, which reaches every test."""
    if not path.name.startswith("test_"):
        return set()
    below = [folder for folder in path.parents if folder.is_relative_to(ROOT / "tests")][:-1]
    return {folder / "conftest.py" for folder in below if (folder / "conftest.py").is_file()}


def order_tests(changes: set[Path]) -> list[Path]:
    """Test files that a change reaches, nearest first."""
    distances = measure_distances(changes)
    folders = {_name_folder(path) for path in changes}

    def rank(path: Path) -> tuple[int, bool, str]:
        return distances[path], _name_folder(path) not in folders, str(path)

    return sorted((path for path in distances if path.name.startswith("test_")), key=rank)


def _name_folder(path: Path) -> str:
    """The part of the package that a file belongs to: `pool` for src/stepwell/pool/… and tests/pool/…"""
    for folder in TOP_FOLDERS.values():
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0]
    return ""


if __name__ == "__main__":
    tests = order_tests(list_changes(sys.argv[1] if len(sys.argv) > 1 else "main"))
    for test in tests[:MAX_FILES]:
        print(test.relative_to(ROOT))
    if len(tests) > MAX_FILES:
        print(
            f"{len(tests) - MAX_FILES} further test files are reached: `make test` runs them", file=sys.stderr
        )
