"""Names that a package resolves when they are first used: imported late, or renamed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that imports each name from the module given in `homes`."""

    def get(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def renamed_names(package: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that still resolves old names, with a warning."""

    def get(name: str) -> Any:
        if name in new_names:
            new = new_names[name]
            warnings.warn(
                f"{package}.{name} is now {package}.{new}; the old name goes in the next release",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(package), new)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
