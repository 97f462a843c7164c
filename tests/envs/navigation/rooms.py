"""A room that tests know by heart: 5 x 5 m, a sofa to the north, a plant to the east of the start."""

from __future__ import annotations

from stepwell.core import Task
from stepwell.envs import make_env
from stepwell.envs.navigation.env import Navigation

CONTENT = {
    "size": [5.0, 5.0],
    "things": [
        {"kind": "sofa", "x": 2.5, "y": 4.5, "turn": 2, "colour": "red"},
        {"kind": "plant", "x": 4.0, "y": 2.0, "turn": 0, "colour": "green"},
        {"kind": "fridge", "x": 2.0, "y": 0.5, "turn": 0, "colour": "blue"},
    ],
    "looks": [0, 0],
    "start": [10, 8, 0],  # x 2.5, y 2.0, facing north
    "target": "sofa",
    "step": 0.25,
}


def task_of(**changes: object) -> Task:
    return Task("navigation", CONTENT | changes, "Go to the sofa.")


def playing(task: Task | None = None, **options: object) -> Navigation:
    env = make_env("navigation", options)
    env.reset(options={"task": task or task_of()})
    assert isinstance(env, Navigation)
    return env
