"""The demo's traces: one task before and after training, a line for each turn."""

from __future__ import annotations

from stepwell.monitors.replays import Replay, ReplayFrame
from stepwell.runs.demo.trace import MAX_CHARS, write_trace, write_traces


def make_replay(task_id: str, stage: str, status: str, *turns: tuple[str, str]) -> Replay:
    frames = [ReplayFrame(seen, f"<answer>{done}</answer>", [done], 0.0) for seen, done in turns]
    return Replay(task_id, task_id, status, 0.0, frames, stage)


def test_a_trace_shows_the_task_once_and_every_turn_on_a_line() -> None:
    replay = make_replay(
        "a",
        "after",
        "success",
        ("to heat cup\nat start", "go oven"),
        ("to heat cup\nat oven: cup", "take cup"),
    )
    told = [line.rstrip() for line in write_trace(replay).splitlines()]
    assert told[0] == 'after training, "to heat cup": success after 2 turns'
    assert [line.split() for line in told[1:]] == [
        ["1", "at", "start", ">", "go", "oven"],
        ["2", "at", "oven:", "cup", ">", "take", "cup"],
    ]


def test_a_long_observation_is_cut_and_the_action_stays() -> None:
    line = write_trace(make_replay("a", "before", "failure", ("x" * 500, "Left"))).splitlines()[1]
    assert line.endswith("…  > Left") and len(line) == 4 + MAX_CHARS + len("  > Left")


def test_a_reply_that_was_not_followed_is_shown_with_the_reason() -> None:
    replay = Replay("a", "a", "failure", 0.0, [ReplayFrame("b", "mumble", [], 0.0, problem="no answer tag")])
    assert write_trace(replay).endswith("> no answer tag")


def test_the_task_that_is_shown_was_failed_before_and_is_solved_after() -> None:
    replays = [
        make_replay(task, stage, status, ("board", "Left"))
        for task, before, after in (
            ("a", "success", "success"),
            ("b", "failure", "failure"),
            ("c", "failure", "success"),
        )
        for stage, status in (("before", before), ("after", after))
    ]
    replays[4].frames[0].actions = ["Right"]
    told = write_traces(replays).splitlines()
    assert told[0].startswith("before training: failure") and told[1].endswith("> Right")
    assert told[2].startswith("after training: success")


def test_without_a_task_played_twice_there_is_no_trace() -> None:
    assert write_traces([make_replay("a", "before", "failure", ("board", "Left"))]) == ""
