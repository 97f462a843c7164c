"""How agents went about it, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.core import Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.rollout.usage import GoldenRow, group_by_golden, measure_reply_length, measure_tool_use


def episode(
    calls: list[list[str]], status: Status = Status.SUCCESS, golden: int | None = None, lost: int = 0
) -> Trajectory:
    """An episode of these calls; its replies have one token more per call."""
    steps = []
    for names in calls:
        ids = np.zeros(1 + len(names), np.int32)
        step = Step(TokenState(np.zeros(1, np.int32)), TokenAction(ids, ""), np.zeros(ids.size, np.float32))
        step.info = {"calls": list(names), "num_lost": lost}
        steps.append(step)
    info = {} if golden is None else {"golden": golden}
    error = "broken" if status is Status.INFRA_ERROR else ""
    return Trajectory(Task("notes", {}), steps, status, error=error, info=info)  # type: ignore[arg-type]


def test_calls_are_counted_per_episode_and_by_tool() -> None:
    played = [episode([["search", "search"], ["answer"]]), episode([["search"]], lost=3)]
    assert measure_tool_use(played) == {
        "calls": 2.0,
        "calls/answer": 0.5,
        "calls/search": 1.5,
        "lost_calls": 1.5,
    }
    assert measure_reply_length(played) == {"response_tokens": (3 + 2 + 2) / 3}


def test_without_tools_there_is_nothing_to_count() -> None:
    plain = episode([["x"]])
    plain.steps[0].info = {"actions": ["Up"]}
    assert measure_tool_use([plain]) == {} and measure_tool_use([]) == {} and measure_reply_length([]) == {}


def test_extra_turns_are_those_of_solved_episodes() -> None:
    played = [
        episode([["a"]] * 4, golden=3),
        episode([["a"]] * 3, golden=3),
        episode([["a"]] * 9, Status.FAILURE, golden=3),
        episode([["a"]] * 9, Status.FAILURE, golden=2),
        episode([["a"]], Status.INFRA_ERROR, golden=2),
        episode([["a"]]),
    ]
    rows = group_by_golden(played)
    assert rows[0] == GoldenRow(2, 1, 0.0, None)
    assert (rows[1].golden, rows[1].num_trajectories, rows[1].extra_turns) == (3, 3, 0.5)
    assert rows[1].success == pytest.approx(2 / 3)
