"""MuJoCo models, compiled once per process: copies of the result are cheap.

Compiling a robot's model file takes a few tenths of a second, copying the result a few milliseconds;
a batch of worlds needs many copies, since each writes its own positions into its model. Only the last
`MAX_COMPILED` are kept, and what compiling leaves behind goes back to the system.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
from functools import lru_cache
from typing import Any

from stepwell.envs.robots.packages import simulator

MAX_COMPILED = 12  # some 20 MB each: the ten tasks of MT10 fit


def mujoco(extra: str) -> Any:
    """The package mujoco, which every extra of a MuJoCo world brings."""
    return simulator("mujoco", world=extra, extra=extra)


def model_of(path: str, extra: str) -> Any:
    """A model of its own, of the file `path`."""
    return copy.copy(_compiled(path, extra))


@lru_cache(maxsize=MAX_COMPILED)
def _compiled(path: str, extra: str) -> Any:
    model = mujoco(extra).MjModel.from_xml_path(path)
    _return_free_memory()
    return model


def _return_free_memory() -> None:
    """Give the compiler's scratch memory back: glibc keeps some 40 MB a model, between blocks in use."""
    with contextlib.suppress(OSError, AttributeError):  # another C library: it decides by itself
        ctypes.CDLL(None).malloc_trim(0)
