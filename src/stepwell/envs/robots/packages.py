"""Opening a simulator's package: one line says which extra installs what is missing.

Simulators are heavy and their pins clash, so each is an extra of its own and is imported when the
first task of its environment is made, never before.
"""

from __future__ import annotations

import importlib
from typing import Any

from stepwell.core.errors import MissingPackageError


def import_simulator(module: str, *, env: str, extra: str) -> Any:
    """The module `module`; where its package is missing, a `MissingPackageError` with the command to run."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"the environment {env!r} needs a package that is not installed ({error.name}): "
            f'pip install "stepwell[{extra}]"'
        ) from error
