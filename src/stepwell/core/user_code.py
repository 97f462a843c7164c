"""Import a user's Python code by name (`my_module:NumberLine`), and show errors with the user's own lines.

    my_env                  an importable module, or one in the current folder
    folder/my_env.py        the path of a file

A file is imported once per process, so that all parts of the program get the same classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.core.names import describe_missing_module, suggest_file, suggest_name
from stepwell.core.text import format_count, replace_half_surrogates

NUM_FRAMES, MAX_ERROR = 4, 2000
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def import_user_module(where: str, wanted_by: str) -> ModuleType:
    """The module `where`: a name or `folder/file.py`. An error begins with `wanted_by`."""
    try:
        return _import_file(where, wanted_by) if where.endswith(".py") else _import_by_name(where, wanted_by)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"{wanted_by}: {describe_missing_module(error.name or str(error))}") from error
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        raise ConfigError(f"{wanted_by} cannot be imported:\n{format_own_lines(error)}") from error


def find_user_function(target: str, wanted_by: str) -> Any:
    """The object named by `module:name` or `folder/file.py:name`; `ConfigError` says what is wrong."""
    where, separator, name = target.rpartition(":")
    if not separator or not where or not name:
        raise ConfigError(f"{wanted_by} must have the form module:function or folder/file.py:function")
    module = import_user_module(where, wanted_by)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if _is_own_function(module, value)]
            title = "Its functions"
            if name.isupper():  # an object such as a recipe
                known, title = [key for key in vars(module) if key.isupper()], "Its objects"
            raise ConfigError(f"{wanted_by}: {where} has no {name!r}{suggest_name(name, known, title)}")
        found = getattr(found, part)
    return found


def _is_own_function(module: ModuleType, value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _import_by_name(name: str, wanted_by: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # an installed command does not search the current folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        own = suggest_name(name, (file.stem for file in Path().glob("*.py")))
        raise ConfigError(f"{wanted_by}: there is no module {name!r} here or installed{own}") from error


def _import_file(where: str, wanted_by: str) -> ModuleType:
    path = Path(where).expanduser().resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{wanted_by}: there is no file {where}{suggest_file(where)}")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that it can import modules beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def iter_error_chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes, contexts and members, each once."""
    waiting, seen = [error], set()
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        yield at
        members = at.exceptions if isinstance(at, BaseExceptionGroup) else ()
        waiting += [e for e in (at.__cause__, at.__context__, *members) if e is not None]


def format_own_lines(error: BaseException) -> str:
    """The frames of the user's own code in a traceback, and the error with its causes."""
    lines: list[str] = []
    for at in iter_error_chain(error):
        message = "".join(traceback.format_exception_only(at)).strip()
        lines.append(
            f"{_format_frames(traceback.extract_tb(at.__traceback__))}{message}"
            if at is error
            else f"caused by {message[: MAX_ERROR // 4]}"
        )
    return replace_half_surrogates("\n".join(lines)[:MAX_ERROR])


def has_own_lines(error: BaseException) -> bool:
    """Whether the user's own code is on the way to an exception."""
    names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(
        not _is_ours(n) and not n.startswith((*_LIBRARIES, "<")) and "-packages" not in n for n in names
    )


def format_own_stack(frame: FrameType) -> str:
    """The frames of the user's own code on the way to `frame`."""
    return _format_frames(traceback.extract_stack(frame))


def _format_frames(frames: list[traceback.FrameSummary]) -> str:
    """The last frames of the user's own code; library frames are summed up in one line."""
    frames = [frame for frame in frames if not _is_ours(frame.filename)]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    if not own:
        return "".join(traceback.format_list(frames[-NUM_FRAMES:]))
    num_below = len(frames) - 1 - frames.index(own[-1])
    below = f"  ({format_count(num_below, 'library frame')} below)\n" if num_below else ""
    return "".join(traceback.format_list(own[-NUM_FRAMES:])) + below


def _is_ours(filename: str) -> bool:
    """Whether a frame belongs to Stepwell or to the import system."""
    return filename.startswith((os.path.join(_PACKAGE, ""), "<frozen importlib", importlib.__file__))
