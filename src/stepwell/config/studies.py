"""Studies that come with the package, by name (`studies/NAME.toml`)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from stepwell.core.errors import ConfigError
from stepwell.core.names import suggest_file, suggest_name


def list_study_names() -> tuple[str, ...]:
    """The names of all built-in studies, in order."""
    return tuple(sorted(path.stem for path in _find_folder().glob("*.toml")))


def find_study(name: str | Path) -> Path:
    """The file of a study: a path, or the name of one that comes with the package.

    A file wins over a name, so that your own study may have the name of a built-in one.
    """
    path = Path(name)
    if path.is_file():
        return path
    if str(name) in list_study_names():
        return _find_folder() / f"{name}.toml"
    if path.is_dir():
        raise ConfigError(f"{str(name)!r} is a folder; give the TOML file of a study, or {_list_names()}")
    guess = (
        suggest_name(str(name), list_study_names())
        or suggest_file(name)
        or f"; give the path of a TOML file, or {_list_names()}"
    )
    raise ConfigError(f"study file {str(name)!r} does not exist, and no built-in study has this name{guess}")


def _list_names() -> str:
    return f"a name ({', '.join(list_study_names())})"


def _find_folder() -> Path:
    return Path(str(files("stepwell.config").joinpath("studies")))
