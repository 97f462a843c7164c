"""Shortest ways: breadth-first search over places, or over whole poses where the target must be faced.

All four sideways moves are at hand at any heading, so that turning never shortens a way; it is needed only
where success asks for the target in view, and then comes in where it costs least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stepwell.envs.navigation.room import MOVES, NAMES, NavigationRoom, Pose


def find_shortest_route(
    room: NavigationRoom, start: Pose, is_goal: Callable[[Pose], bool], with_turns: bool, max_actions: int
) -> list[str] | None:
    """A shortest list of actions to a pose that `is_goal`; None where more than `max_actions` are needed."""
    actions = NAMES if with_turns else tuple(MOVES)
    came: dict[Pose, tuple[Pose, str] | None] = {start: None}
    queue = deque([(start, 0)])
    while queue:
        pose, length = queue.popleft()
        if is_goal(pose):
            return _trace_route(came, pose)
        if length == max_actions:
            continue
        for action in actions:
            after = room.move(pose, action)
            if after not in came:
                came[after] = (pose, action)
                queue.append((after, length + 1))
    return None


def _trace_route(came: dict[Pose, tuple[Pose, str] | None], pose: Pose) -> list[str]:
    way: list[str] = []
    while (step := came[pose]) is not None:
        pose, action = step
        way.append(action)
    return way[::-1]
