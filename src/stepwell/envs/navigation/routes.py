"""Shortest paths: breadth-first search over positions, or over whole poses if the target must be faced.

All four sideways moves are possible at any heading, so turning never shortens a path. It is needed only if
the target must be in view, and the search then inserts it where it costs least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stepwell.envs.navigation.room import MOVES, NAMES, NavigationRoom, Pose


def find_shortest_route(
    room: NavigationRoom, start: Pose, is_goal: Callable[[Pose], bool], with_turns: bool, max_actions: int
) -> list[str] | None:
    """A shortest list of actions to a pose that satisfies `is_goal`; None if it exceeds `max_actions`."""
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
