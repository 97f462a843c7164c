"""Names for user-defined objects: functions, classes and values of the user's own modules.

    my_module:brevity            importable, or in the current folder
    folder/my_module.py:brevity  the same by the path of its file
    __main__:brevity             of the notebook or script that runs this process
    in-process:brevity           passed as a Python object that cannot be imported by name

Settings hold names, because a run stores its settings and other processes read them. Python code may pass the
object itself: `name_object` gives it a name, and `find_object` returns the object. Installed packages add
names by entry points (`list_installed`).

Invariants
* `find_object(name_object(value), ...) is value` in the process that named it.
* Names come only from the user who runs the process: settings, Python code, installed packages. No service
  accepts a name from a remote caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from stepwell.core.errors import ConfigError
from stepwell.core.user_code import find_user_function

IN_PROCESS, MAIN = "in-process", "__main__"
ENVS, RECIPES = "stepwell.envs", "stepwell.recipes"  # groups of entry points
_KIND = "__stepwell_kind__"
_objects: dict[str, Any] = {}

F = TypeVar("F", bound=Callable[..., Any])


def is_import_path(name: str) -> bool:
    """Whether a name has the form `module:name`, so that it is not a built-in name."""
    return ":" in name


def is_process_bound(name: str) -> bool:
    """Whether only the process that named an object can find it by this name."""
    return name.startswith((f"{IN_PROCESS}:", f"{MAIN}:"))


def name_object(value: Any) -> Any:
    """The name by which `find_object` finds `value` in this process; names and plain data are returned
    unchanged."""
    if value is None or isinstance(value, str | int | float | list | tuple | dict):
        return value
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module in sys.modules and name and _look_up(sys.modules[module], name) is value:
        return f"{module}:{name}"
    return _register(value, name)


def find_object(name: str, wanted_by: str) -> Any:
    """The object with this name; otherwise a `ConfigError` that begins with `wanted_by`."""
    if name.startswith(f"{IN_PROCESS}:"):
        if name not in _objects:
            raise ConfigError(
                f"{wanted_by}: {name!r} was a Python object of another process. Put it into a module, and "
                "name it module:name"
            )
        return _objects[name]
    if name.startswith(f"{MAIN}:") and _look_up(sys.modules[MAIN], name.partition(":")[2]) is None:
        raise ConfigError(
            f"{wanted_by}: {name!r} was defined in a notebook or script, and this process has none of that "
            "name. Define it again before you go on (run its cell), or put it into a module and name it "
            "module:name"
        )
    return find_user_function(name, wanted_by)


def mark_kind(value: F, kind: str) -> F:
    """Store the kind of a function, so that `stepwell check` can find it."""
    setattr(value, _KIND, kind)
    return value


def get_declared_kind(value: Any) -> str | None:
    """The kind that a decorator remembered; None without one."""
    kind = getattr(value, _KIND, None)
    return kind if isinstance(kind, str) else None


def list_installed(group: str) -> dict[str, str]:
    """Name and import path of everything that installed packages add to a group; each name once."""
    return {name: paths[0] for name, paths in _read_entry_points(group, tuple(sys.path)).items()}


def find_installed(group: str, name: str) -> str | None:
    """The import path behind a name that an installed package adds; two packages may not add the same."""
    paths = _read_entry_points(group, tuple(sys.path)).get(name, ())
    if len(paths) > 1:
        raise ConfigError(
            f"{name!r} is added by two installed packages ({' and '.join(paths)}); write one of these paths"
        )
    return paths[0] if paths else None


@lru_cache(maxsize=8)
def _read_entry_points(group: str, path: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    from importlib.metadata import entry_points

    found: dict[str, dict[str, None]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {})[point.value.replace(" ", "").partition("[")[0]] = None
    return {name: tuple(paths) for name, paths in sorted(found.items())}


def _look_up(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _register(value: Any, name: str | None) -> str:
    for known, found in _objects.items():
        if found is value:
            return known
    label = name or getattr(value, "name", None)
    plain = (label if isinstance(label, str) else type(value).__name__).rpartition(".")[2].strip("<>")
    number = 1 + sum(known.partition(":")[2].partition("#")[0] == plain for known in _objects)
    key = f"{IN_PROCESS}:{plain}" if number == 1 else f"{IN_PROCESS}:{plain}#{number}"
    _objects[key] = value
    return key
