"""A user's own Python code by its name: `my_module:NumberLine` or `folder/my_env.py:NumberLine`.

A module is installed or lies in the present folder. A file is imported once in a process, so that its
classes are the same objects whoever asks for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell.core.errors import ConfigError


def import_user_module(where: str, wanted_by: str) -> ModuleType:
    """The module `where`, or the one in the file `where`; what it raises itself goes through.

    `wanted_by` begins the error where there is none.
    """
    if where.endswith(".py"):
        return import_file(where, wanted_by)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an installed command does not look in the present folder by itself
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{wanted_by}: there is no module {where!r} here or installed") from error


def find_user_function(target: str, wanted_by: str) -> Any:
    """What `module:name` or `folder/file.py:name` stands for; `ConfigError` says what is wrong."""
    where, separator, name = target.rpartition(":")
    if not separator or not where or not name:
        raise ConfigError(f"{wanted_by} must be written module:function, or folder/file.py:function")
    module = import_user_module(where, wanted_by)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if _is_own_function(module, value)]
            raise ConfigError(
                f"{wanted_by}: {where} has no {name!r}; it has {', '.join(known) or 'no functions'}"
            )
        found = getattr(found, part)
    return found


def _is_own_function(module: ModuleType, value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


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
