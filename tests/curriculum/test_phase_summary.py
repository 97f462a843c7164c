"""What a person is told about a phase: results, failures by type, and where tasks come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stepwell.core import Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.curriculum import DroppedTask, ScoredTrajectory, SourcedTask
from stepwell.curriculum.error_types import ErrorType, classify_failure
from stepwell.curriculum.phase_summary import describe_summary, summarize_phase

MAX_TURNS = 4


def make_episode(
    turns: Sequence[tuple[str, str]], status: Status = Status.FAILURE, task: Task | None = None
) -> Trajectory:
    """Turns are (what was seen, what was written); a reply without meaning is `?`."""
    steps = []
    for seen, said in turns:
        step = Step(
            TokenState(np.array([1], np.int32)),
            TokenAction(np.array([2], np.int32), said),
            behavior_logprobs=np.array([-1.0], np.float32),
            anchor=seen,
        )
        if said == "?":
            step.info["problem"] = "not an action"
        steps.append(step)
    return Trajectory(task or Task("lake", {"board": "x"}, tags=("ice",)), steps, status)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([("a", "?"), ("a", "?")], ErrorType.NO_ATTEMPT),
        ([("a", "up"), ("a", "left")], ErrorType.NO_ATTEMPT),
        ([("a", "up"), ("b", "down"), ("a", "up"), ("b", "down")], ErrorType.STUCK),
        ([("a", "up"), ("b", "up"), ("c", "up")], ErrorType.STUCK),
        ([("a", "up"), ("b", "exit")], ErrorType.WRONG_PLACE),
        ([("a", "up"), ("b", "left"), ("c", "up"), ("d", "left")], ErrorType.NO_RECOVERY),
    ],
)
def test_failures_are_told_apart(turns: list[tuple[str, str]], expected: ErrorType) -> None:
    assert classify_failure(make_episode(turns), MAX_TURNS) is expected


def test_a_phase_is_summed_up_by_family_required_turns_and_reason() -> None:
    ice, snow = (
        Task("lake", {"n": 1}, tags=("ice",)),
        Task("lake", {"n": 2}, "cross the snow", tags=("snow",)),
    )
    gone = SourcedTask(Task("lake", {"n": 3}), (ice.id,), "evolve", "harder", value=0.9)
    fed = [SourcedTask(ice, generator="fresh"), SourcedTask(snow, (ice.id,), "evolve", "easier", 0.4, 3)]
    played = [
        make_episode([("a", "up"), ("b", "left")], Status.SUCCESS, ice),
        make_episode([("a", "up"), ("b", "exit")], Status.FAILURE, ice),
        make_episode([("a", "?")], Status.FAILURE, snow),
    ]
    scored = [ScoredTrajectory("t", (1.0, 1.5, 9.0))]
    summary = summarize_phase(
        2,
        range(3, 5),
        fed,
        [DroppedTask(gone, "too easy")],
        played,
        scored,
        name_family=lambda task: task.tags[0],
        count_requirements=lambda task: len(task.instruction.split()) or None,
        max_turns=MAX_TURNS,
    )
    assert summary["updates"] == [3, 4] and summary["success"] == pytest.approx(1 / 3)
    assert summary["families"] == {
        "ice": {"episodes": 2, "success": 0.5},
        "snow": {"episodes": 1, "success": 0.0},
    }
    assert summary["required_turns"] == {
        "1 to 2": {"episodes": 2, "success": 0.5},
        "3 to 4": {"episodes": 1, "success": 0.0},
    }
    assert summary["requirements"] == {"3": {"episodes": 1, "success": 0.0}}  # ice does not say
    assert summary["errors"] == {"stopped at the wrong place": 1, "no reasonable attempt": 1}
    assert summary["kept"] == {"fresh": 1, "easier": 1} and summary["dropped"] == {"too easy": 1}
    (lost,) = summary["dropped_tasks"]
    assert lost["title"] == '{"n": 3}' and lost["reason"] == "too easy" and lost["parents"] == [ice.id]
    assert summary["made"] == 2 and summary["buffer"] == 1
    assert summary["perplexities"]["counts"] == [1, 0, 0, 1, 0, 1]
    (_, child) = summary["tasks"]
    assert child["parents"] == [ice.id] and child["title"] == "cross the snow" and child["played"] == 1
    told = describe_summary(summary)
    assert "0.33 of 3 episodes solved" in told and "dropped: 1 too easy" in told and "snow 0.00" in told
