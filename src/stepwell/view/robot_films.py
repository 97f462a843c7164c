"""Films of robots that see no images: somebody asks for one, and the simulator plays the episode again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from stepwell.core import ArrayState
from stepwell.core.arrays import AnyArray
from stepwell.core.errors import InputError
from stepwell.pool import StoredTrajectory
from stepwell.view.run_files import ViewedRun

MAX_KEPT = 4
_KEPT: OrderedDict[tuple[str, str], list[AnyArray]] = OrderedDict()
_LOCK = threading.Lock()  # one simulator at a time


def can_simulate(run: ViewedRun, stored: StoredTrajectory) -> bool:
    """Whether the episode is a robot's, of a simulator that comes with Stepwell."""
    steps = stored.trajectory.steps
    if not steps or not isinstance(steps[0].state, ArrayState) or "seed" not in stored.trajectory.info:
        return False
    from stepwell.runs.evaluation.robot_frames import has_simulator

    return has_simulator(run.env)


def simulate_frames(run: ViewedRun, stored: StoredTrajectory) -> list[AnyArray]:
    """The images of the episode; those of the last few episodes are kept."""
    if not can_simulate(run, stored):
        raise InputError("this episode cannot be played again")
    from stepwell.runs.evaluation.robot_frames import render_apart

    key = (str(run.folder), stored.id)
    with _LOCK:
        if key not in _KEPT:
            while len(_KEPT) >= MAX_KEPT:
                _KEPT.popitem(last=False)
            options = run.config.get("env", {}).get("options", {})
            _KEPT[key] = render_apart(run.env, options, stored.trajectory)
        return _KEPT[key]
