"""A task as a table: every state it can come to, and where each action leads from it.

With tables, many tasks are played at once by indexing, which is what the search for the best
blind plan needs. Only environments without chance and with few states have one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

State = TypeVar("State", bound=Hashable)


class StateTable(NamedTuple):
    """`next_states[state, action]` is the next state (an ended episode stays where it is); 0 is the first."""

    next_states: npt.NDArray[np.int32]
    solved: npt.NDArray[np.bool_]


def build_state_table(
    first: State,
    actions: Sequence[str],
    move: Callable[[State, str], State],
    is_over: Callable[[State], bool],
    is_solved: Callable[[State], bool],
    max_actions: int,
) -> StateTable:
    """All states within `max_actions` of the first; the outermost ones lead to themselves."""
    numbers: dict[State, int] = {first: 0}
    rows: list[list[int]] = []
    frontier = [first]
    for _ in range(max_actions):
        reached = []
        for state in frontier:
            row = []
            for action in actions:
                after = state if is_over(state) else move(state, action)
                if after not in numbers:
                    numbers[after] = len(numbers)
                    reached.append(after)
                row.append(numbers[after])
            rows.append(row)
        frontier = reached
    rows += [[number] * len(actions) for number in range(len(rows), len(numbers))]
    solved = np.array([is_solved(state) for state in numbers])
    return StateTable(np.array(rows, dtype=np.int32).reshape(-1, len(actions)), solved)


class TableBatch(NamedTuple):
    """The tables of many tasks, padded to one size: [task, state, action] and [task, state]."""

    next_states: npt.NDArray[np.int32]
    solved: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tables: Sequence[StateTable]) -> TableBatch:
        """All tables side by side."""
        size = max(table.next_states.shape[0] for table in tables)
        num_actions = tables[0].next_states.shape[1]
        next_states = np.zeros((len(tables), size, num_actions), np.int32)
        solved = np.zeros((len(tables), size), np.bool_)
        for index, table in enumerate(tables):
            next_states[index, : table.next_states.shape[0]] = table.next_states
            solved[index, : table.solved.size] = table.solved
        return cls(next_states, solved)

    def compute_closeness(self, num_actions: int) -> npt.NDArray[np.float32]:
        """2^-n where n actions are still needed (at most `num_actions`), 0 where all is lost."""
        close = self.solved.astype(np.float32)
        every = np.arange(close.shape[0])[:, None, None]
        for _ in range(num_actions):
            close = np.maximum(close, close[every, self.next_states].max(axis=2) / 2)
        return close
