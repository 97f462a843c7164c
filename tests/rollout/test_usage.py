"""How agents went about it, counted by hand."""

from __future__ import annotations

import numpy as np

from stepwell.core import Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.rollout.usage import measure_reply_length, measure_tool_use


def episode(calls: list[list[str]], lost: int = 0) -> Trajectory:
    """An episode of these calls; its replies have one token more per call."""
    steps = []
    for names in calls:
        ids = np.zeros(1 + len(names), np.int32)
        step = Step(TokenState(np.zeros(1, np.int32)), TokenAction(ids, ""), np.zeros(ids.size, np.float32))
        step.info = {"calls": list(names), "num_lost": lost}
        steps.append(step)
    return Trajectory(Task("notes", {}), steps, Status.SUCCESS)


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
