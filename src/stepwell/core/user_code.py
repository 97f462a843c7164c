"""A user's own Python file, imported by its path: `folder/my_env.py` of `folder/my_env.py:NumberLine`.

A file is imported once in a process, so that its classes are the same objects whoever asks for them.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from stepwell.core.errors import ConfigError


def import_file(where: str, wanted_by: str) -> ModuleType:
    """The module in the file `where`; `wanted_by` begins the error where there is no such file."""
    path = Path(where).expanduser().resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{wanted_by}: there is no file {where}")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that it may import what lies beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
