"""Late rewards: how they change a step, and the total of a trajectory.

A step may have rewards when it is appended. Later values are kept as history. The newest value of a
part replaces the part, and the step's reward is the sum of its parts. A step that was appended with
a reward but no parts has all of it in the part `task`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from stepwell.core import Step
from stepwell.pool.schema import rewards, steps, trajectories

MAIN_PART = "task"

_LIGHT = select(steps.c.number, steps.c.reward, steps.c.reward_parts).order_by(steps.c.number)
_HISTORY = select(rewards.c.number, rewards.c.part, rewards.c.value).order_by(rewards.c.seq)


def collect_corrections(history: Sequence[Any], path: Sequence[int]) -> dict[int, dict[str, float]]:
    """The newest value of every part, by step. A reward without a step is for the last one of the path."""
    newest: dict[int, dict[str, float]] = {}
    for row in history:
        number = row.number if row.number is not None else (path[-1] if path else None)
        if number is not None:
            newest.setdefault(number, {})[row.part] = row.value
    return newest


def merge_parts(
    reward: float | None, parts: Mapping[str, float], newest: Mapping[str, float]
) -> dict[str, float]:
    """The parts of a step's reward after later corrections."""
    first = dict(parts) or ({} if reward is None else {MAIN_PART: reward})
    return {**first, **newest}


def apply_corrections(step: Step, newest: Mapping[str, float]) -> None:
    """Set the current reward of a step that was just read."""
    if newest:
        step.assign_reward(merge_parts(step.reward, step.reward_parts, newest))


def compute_total(connection: Connection, seq: int, path: Sequence[int] | None) -> float | None:
    """The sum over the path of one trajectory; None while no step of it has a reward."""
    light = connection.execute(_LIGHT.where(steps.c.trajectory == seq)).all()
    history = connection.execute(_HISTORY.where(rewards.c.trajectory == seq)).all()
    return sum_rewards(light, history, path)


def sum_rewards(light: Sequence[Any], history: Sequence[Any], path: Sequence[int] | None) -> float | None:
    """The total reward over the path, from rows that were read already."""
    numbers = list(path) if path is not None else [row.number for row in light]
    newest = collect_corrections(history, numbers)
    values: list[float] = []
    for row in light:
        if row.number in set(numbers):
            late = newest.get(row.number)
            if late:
                parts = json.loads(row.reward_parts) if row.reward_parts else {}
                values.append(float(sum(merge_parts(row.reward, parts, late).values())))
            elif row.reward is not None:
                values.append(row.reward)
    return float(sum(values)) if values else None


def update_total(connection: Connection, seq: int, path: Sequence[int] | None) -> None:
    """Update the total of a finished trajectory after a correction."""
    connection.execute(
        update(trajectories)
        .where(trajectories.c.seq == seq)
        .values(reward=compute_total(connection, seq, path))
    )
