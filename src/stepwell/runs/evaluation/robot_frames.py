"""A robot's episode as images, action by action: its actions are repeated in the simulator.

    trajectory ─► child process: reset to its task and seed ─► act ─► render ─► act ─► … ─► images

Simulators are deterministic given task, seed and actions, so the images show what happened. The child process
holds the simulator and its graphics: a fault in it ends nothing else, and its memory is freed. It
takes no options that name files or code: looking at a stranger's run must not run a stranger's code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.core import ArrayAction, EnvError, Trajectory
from stepwell.core.arrays import AnyArray
from stepwell.core.child_process import ChildProcess
from stepwell.core.encoding import decode_trajectory, encode_trajectory
from stepwell.core.errors import InputError, StepwellError
from stepwell.envs.options import list_host_options
from stepwell.envs.registry import ROBOT_ENVS, find_env_type, make_env

MAX_FRAMES = 600
MIN_IMAGE_SIZE = 240
_TIMEOUT_S = 120.0
_TRAJECTORY, _FRAMES = "trajectory", "frames.npy"


def has_simulator(env: str) -> bool:
    """Whether the environment is a robot's that comes with Stepwell."""
    return env in ROBOT_ENVS


def render_apart(env: str, options: Mapping[str, Any], trajectory: Trajectory) -> list[AnyArray]:
    """The images of an episode, rendered by a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / _TRAJECTORY).write_bytes(encode_trajectory(trajectory))
        child = ChildProcess([sys.executable, "-m", __name__, env, json.dumps(dict(options)), place])
        try:
            if not child.wait(_TIMEOUT_S):
                raise EnvError(f"the simulator of {env} did not show this episode within {_TIMEOUT_S:.0f} s")
            if child.exit_code != 0:
                raise EnvError(f"the simulator of {env} {child.describe_end()}")
        finally:
            child.kill()
        return list(np.load(Path(place) / _FRAMES))


def render_episode(env: str, options: Mapping[str, Any], trajectory: Trajectory) -> list[AnyArray]:
    """The first state, and the state after each action; at most `MAX_FRAMES`, evenly spread."""
    size = max(MIN_IMAGE_SIZE, int(options.get("image_size", 0)))
    played = make_env(env, {**options, "image_size": size})
    try:
        if not getattr(played, "is_robot", False) or not played.is_deterministic:
            raise InputError(f"{env} cannot be played again from its actions")
        seed = int(trajectory.info["seed"]) % 2**32  # type: ignore[arg-type]
        played.reset(seed=seed, options={"task": trajectory.task})
        actions = _list_actions(trajectory)
        shown = set(np.linspace(0, len(actions), min(len(actions) + 1, MAX_FRAMES)).round().astype(int))
        frames = [played.render()]
        for number, action in enumerate(actions, start=1):
            is_over = played.step(action[None])[2]
            if number in shown or is_over:
                frames.append(played.render())
            if is_over:
                break
        return frames
    finally:
        played.close()


def refuse_host_options(env: str, options: Mapping[str, Any]) -> None:
    """Raise an `InputError` if an option names a file, an address or code."""
    named = sorted({*list_host_options(find_env_type(env).Options)} & {*options})
    if named:
        raise InputError(f"env.options.{named[0]} names a file or code; to show an episode, none is opened")


def _list_actions(trajectory: Trajectory) -> list[AnyArray]:
    """Every action of every chunk; those after the end of the episode were never executed."""
    found: list[AnyArray] = []
    for step in trajectory.steps:
        if not isinstance(step.action, ArrayAction):
            raise InputError("this is no robot's episode")
        found += list(step.action.chunk)
    return found


def main(env: str, options: str, place: str) -> int:
    trajectory = decode_trajectory((Path(place) / _TRAJECTORY).read_bytes())
    try:
        given = json.loads(options)
        refuse_host_options(env, given)
        frames = render_episode(env, given, trajectory)
    except StepwellError as error:
        print(error, file=sys.stderr)
        return 1
    np.save(Path(place) / _FRAMES, np.stack(frames))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
