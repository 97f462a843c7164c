"""Shortest solutions, forwards: breadth first over player and boxes, dead ends left out.

A cell is dead if a box on it can never come to any target, however the player stands; no
situation with a box there is looked at. What is left is searched in order of length, so the
first solution found is a shortest one, and none found means there is none.
"""

from __future__ import annotations

from functools import lru_cache

from stepwell.core import EnvError
from stepwell.envs.sokoban.room import Situation, SokobanRoom, list_cells

MAX_SITUATIONS = 2_000_000


class Solver:
    """Shortest solutions in one room; every situation on a way found is remembered."""

    def __init__(self, room: SokobanRoom) -> None:
        self.room = room
        self.dead = find_dead_cells(room)
        self._next: dict[Situation, str | None] = {}

    def solve(self, situation: Situation) -> list[str] | None:
        """A shortest list of actions that puts every box onto a target; None if there is none."""
        if situation not in self._next and situation.boxes != self.room.targets:
            self._search_solution(situation)
        way: list[str] = []
        while situation.boxes != self.room.targets:
            action = self._next[situation]
            if action is None:
                return None
            way.append(action)
            situation = self.room.move(*situation, action)
        return way

    def _search_solution(self, start: Situation) -> None:
        came: dict[Situation, tuple[Situation, str] | None] = {start: None}
        frontier = [start] if not start.boxes & self.dead else []
        while frontier:
            reached = []
            for situation in frontier:
                for action in self.room.steps[situation.player]:
                    after = self.room.move(*situation, action)
                    if after in came or after.boxes & self.dead:
                        continue
                    came[after] = situation, action
                    if after.boxes == self.room.targets:
                        self._remember_solution(after, came)
                        return
                    reached.append(after)
            if len(came) > MAX_SITUATIONS:
                raise EnvError(f"no solution among {MAX_SITUATIONS} situations; use fewer boxes or less room")
            frontier = reached
        self._next[start] = None

    def _remember_solution(self, end: Situation, came: dict[Situation, tuple[Situation, str] | None]) -> None:
        step = came[end]
        while step is not None:
            situation, action = step
            self._next[situation] = action
            step = came[situation]


@lru_cache(maxsize=1024)
def open_solver(num_rows: int, num_columns: int, walls: int, targets: int) -> Solver:
    """The solver of a room, shared by all who play in it."""
    return Solver(SokobanRoom.from_sets(num_rows, num_columns, walls, targets))


def find_dead_cells(room: SokobanRoom) -> int:
    """The floor from which no box can be pushed to a target, even if it were alone."""
    alive, frontier = room.targets, list_cells(room.targets)
    while frontier:
        cell = frontier.pop()
        for back in room.steps[cell].values():  # a box came from `back`, pushed by a player beyond it
            if back < 0 or alive >> back & 1:
                continue
            toward = next(action for action, to in room.steps[cell].items() if to == back)
            if room.steps[back][toward] >= 0:
                alive |= 1 << back
                frontier.append(back)
    everything = (1 << room.num_rows * room.num_columns) - 1
    return everything & ~room.walls & ~alive
