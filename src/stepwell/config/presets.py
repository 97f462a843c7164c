"""Configurations that come with the package, by name (`presets/NAME.toml`)."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def list_preset_names() -> tuple[str, ...]:
    """The names of all presets, in order."""
    found = (file.name for file in _find_folder().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def read_preset_text(name: str) -> str:
    """The TOML of a preset; `name` must be one of `list_preset_names()`."""
    return _find_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _find_folder() -> Traversable:
    return files("stepwell.config").joinpath("presets")
