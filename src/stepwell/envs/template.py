"""What `stepwell init env NAME` writes: a small world that works, and a test of it.

Both files are complete: the world passes the checker as it is, so that a change that breaks the
contract shows at once. Nothing that exists is overwritten.
"""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from string import Template

from stepwell.core import InputError
from stepwell.envs.registry import ENVS

SOURCES = Path(__file__).parent / "templates"


def write_template(name: str, folder: str | Path) -> list[Path]:
    """Write `NAME.py` and `test_NAME.py` into `folder`; returns their paths."""
    _check_name(name)
    folder = Path(folder)
    paths = [folder / f"{name}.py", folder / f"test_{name}.py"]
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists; choose another name or another folder")
    words = {"name": name, "class_name": class_name(name), "title": name.replace("_", " ").capitalize()}
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in zip(paths, ("env.txt", "test_env.txt"), strict=True):
        path.write_text(Template((SOURCES / source).read_text()).substitute(words))
    return paths


def class_name(name: str) -> str:
    """The class of a template: `coin_hunt` -> `CoinHunt`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _check_name(name: str) -> None:
    if not (name.isidentifier() and name.islower() and name.isascii() and name[0] != "_"):
        raise InputError(f"env name {name!r} must be lower-case letters, digits and '_', as in coin_hunt")
    if keyword.iskeyword(name) or name in ENVS or importlib.util.find_spec(name) is not None:
        raise InputError(f"env name {name!r} is taken by Python, a package or a world here; choose another")
