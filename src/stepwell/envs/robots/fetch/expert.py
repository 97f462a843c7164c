"""Scripted experts of the Fetch tasks: each looks at the present positions and nothing else.

An action moves the gripper by up to five centimetres per axis, and closes (-) or opens (+) its fingers.
`slide` has none: the puck must be struck once, with just the right speed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

GAIN = 20.0  # actions per metre
OPEN, CLOSED = 1.0, -1.0
BLOCK = 0.025  # half the width of the block
BEHIND = BLOCK + 0.045  # where a push starts, from the block's middle
CLEAR = 0.08  # height above the block at which the gripper passes over it
ABOVE = np.array([0.0, 0.0, CLEAR])


def reach_goal(hand: Vector, fingers: float, block: Vector, goal: Vector) -> Vector:
    """Straight to the goal."""
    return _move_towards(goal - hand, CLOSED)


def push_block(hand: Vector, fingers: float, block: Vector, goal: Vector) -> Vector:
    """Over the block to its far side, down, and through it towards the goal."""
    way = goal[:2] - block[:2]
    way = way / max(float(np.linalg.norm(way)), 1e-9)
    along = float((hand[:2] - block[:2]) @ way)
    aside = hand[:2] - block[:2] - along * way
    start = np.append(block[:2] - BEHIND * way, block[2])
    is_behind = along < -BLOCK and np.linalg.norm(aside) < 0.015
    if is_behind and hand[2] < block[2] + 0.02:
        speed = min(0.04, float(np.linalg.norm(goal[:2] - block[:2])) + 0.015)
        return _move_towards(np.append(speed * way - 0.8 * aside, block[2] - hand[2]), CLOSED)
    if np.linalg.norm(hand[:2] - start[:2]) < 0.015:
        return _move_towards(start - hand, CLOSED)
    if hand[2] < block[2] + CLEAR - 0.02:
        return _move_towards(np.array([0.0, 0.0, block[2] + CLEAR - hand[2]]), CLOSED)
    return _move_towards(start + ABOVE - hand, CLOSED)


def pick_and_place_block(hand: Vector, fingers: float, block: Vector, goal: Vector) -> Vector:
    """Above the block, down, close, and carry it to the goal."""
    to_block = block - hand
    if np.linalg.norm(to_block) > 0.02:
        if np.linalg.norm(to_block[:2]) > 0.01 and to_block[2] < 0.0:
            return _move_towards(to_block + ABOVE, OPEN)
        return _move_towards(to_block, OPEN)
    if fingers > 2 * BLOCK + 0.002:
        return _move_towards(np.zeros(3), CLOSED)
    return _move_towards(goal - block, CLOSED)


EXPERTS: dict[str, Callable[[Vector, float, Vector, Vector], Vector]] = {
    "reach": reach_goal,
    "push": push_block,
    "pick_and_place": pick_and_place_block,
}


def _move_towards(move: Vector, gripper: float) -> Vector:
    """At most full speed, in the direction of `move`."""
    action = GAIN * move
    return np.append(action / max(1.0, float(np.abs(action).max())), gripper)
