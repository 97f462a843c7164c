"""What `stepwell init KIND NAME` writes: small files that work, to be changed step by step.

One entry of `FILES` per kind; the texts are in `templates/`. Nothing that exists is overwritten.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from stepwell.core import InputError

SOURCES = Path(__file__).parent / "templates"
FILES: Mapping[str, Mapping[str, str]] = {
    "env": {"{name}.py": "env.txt", "test_{name}.py": "test_env.txt"},
    "agent": {"{name}.py": "agent.txt", "{name}.toml": "agent_settings.txt"},
    "run": {"{name}.toml": "run.txt"},
    "reward": {"{name}.py": "reward.txt"},
}


def write_files(kind: str, name: str, folder: str | Path) -> list[Path]:
    """Write the files of a kind into `folder`; returns their paths."""
    _check_name(kind, name)
    folder = Path(folder)
    sources = {folder / path.format(name=name): source for path, source in FILES[kind].items()}
    for path in sources:
        if path.exists():
            raise InputError(f"{path} exists; choose another name or another folder")
    words = {
        "name": name,
        "class_name": make_class_name(name),
        "title": name.replace("_", " ").capitalize(),
        "path": (folder / name).as_posix(),
        "env": name_env(name, folder),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in sources.items():
        path.write_text(Template((SOURCES / source).read_text(encoding="utf-8")).substitute(words))
    return list(sources)


def name_env(name: str, folder: Path) -> str:
    """An environment as commands name it: `maze:Maze` here, `folder/maze.py:Maze` elsewhere."""
    where = name if folder == Path(".") else str(folder / f"{name}.py")
    return f"{where}:{make_class_name(name)}"


def make_class_name(name: str) -> str:
    """The class of an environment: `coin_hunt` -> `CoinHunt`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _check_name(kind: str, name: str) -> None:
    from stepwell.envs.registry import ENVS

    if not (name.isidentifier() and name.islower() and name.isascii() and name[0] != "_"):
        bare = re.sub(r"\W+", "_", name.partition(".")[0], flags=re.ASCII).lower()
        endings = "its files get their endings: " if "." in name else ""
        hint = f"; {endings}write {bare}" if bare.isidentifier() and bare[0] != "_" else ""
        raise InputError(
            f"{kind} name {name!r} must be lower-case letters, digits and '_', as in coin_hunt{hint}"
        )
    is_module = any(path.endswith(".py") for path in FILES[kind])
    if is_module and (keyword.iskeyword(name) or name in ENVS or importlib.util.find_spec(name) is not None):
        raise InputError(
            f"{kind} name {name!r} is taken by Python, a package or a built-in environment; choose another"
        )
