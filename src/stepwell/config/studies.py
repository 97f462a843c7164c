"""Studies that come with the package, by name (`studies/NAME.toml`)."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from stepwell.core.errors import ConfigError


def study_names() -> tuple[str, ...]:
    """The names of all of them, in order."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def find_study(given: str | Path) -> Path:
    """The file of a study: a path, or the name of one that comes with the package.

    A file wins over a name, so that a study of your own may be called like one of ours.
    """
    path = Path(given)
    if path.is_file():
        return path
    if str(given) in study_names():
        return _folder() / f"{given}.toml"
    near = difflib.get_close_matches(str(given), study_names(), n=1)
    guess = f"did you mean {near[0]}?" if near else f"give the path of a TOML file, or {_either()}"
    raise ConfigError(f"study file {str(given)!r} does not exist, and no study of ours is called so; {guess}")


def _either() -> str:
    return f"a name ({', '.join(study_names())})"


def _folder() -> Path:
    return Path(str(files("stepwell.config").joinpath("studies")))
