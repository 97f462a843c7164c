"""MuJoCo models, compiled once per process: copies of the result are cheap.

Compiling a robot's model file takes a few tenths of a second, copying the result a few milliseconds;
a batch of environments needs many copies, since each writes its own positions into its model.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

from stepwell.envs.robots.packages import import_simulator


def import_mujoco(extra: str) -> Any:
    """The package mujoco, which every extra of a MuJoCo environment brings."""
    return import_simulator("mujoco", env=extra, extra=extra)


def make_model(path: str, extra: str) -> Any:
    """A model of its own, of the file `path`."""
    return copy.copy(_compile_model(path, extra))


@lru_cache(maxsize=64)
def _compile_model(path: str, extra: str) -> Any:
    return import_mujoco(extra).MjModel.from_xml_path(path)
