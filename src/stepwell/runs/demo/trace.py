"""One task before and after training, turn by turn, as text for a terminal.

    before training, "to heat cup put in sink": failure after 10 turns
     1  at start | You: nothing | go bed, go desk, go oven, go sink            > go desk
     …
    after training, "to heat cup put in sink": success after 5 turns
     …

The task is the first of the run's replays that the agent failed before and solves after training; where there
is none, the first that was played both times. Words that every observation begins with (the task) are shown
once. A turn is one line: what the agent saw, and what it did.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepwell.monitors.replays import Replay, ReplayFrame

MAX_CHARS = 72
"""Of an observation; the rest is left out."""


def write_traces(replays: Sequence[Replay]) -> str:
    """Both episodes of one task; empty if no task was played before and after training."""
    return "\n".join(write_trace(replay) for replay in _choose_pair(replays))


def write_trace(replay: Replay) -> str:
    """One episode: a line that says how it ended, then a line for each turn."""
    seen = [frame.observation.splitlines() for frame in replay.frames]
    task = _find_task(seen)
    task_text = f', "{task}"' if task else ""
    head = f"{replay.stage} training{task_text}: {replay.status} after {len(seen)} turns"
    shown = [lines[1:] if task else lines for lines in seen]
    turns = zip(shown, replay.frames, strict=True)
    return "\n".join([head, *(_write_turn(i, lines, frame) for i, (lines, frame) in enumerate(turns, 1))])


def _find_task(seen: Sequence[Sequence[str]]) -> str:
    """The words above every observation; empty if they begin with something else, such as a board."""
    firsts = {lines[0] if len(lines) > 1 else "" for lines in seen}
    first = firsts.pop() if len(firsts) == 1 else ""
    return first if re.search("[a-z]{2}", first) else ""


def _choose_pair(replays: Sequence[Replay]) -> tuple[Replay, ...]:
    after = {replay.task_id: replay for replay in replays if replay.stage == "after"}
    pairs = [(one, after[one.task_id]) for one in replays if one.stage == "before" and one.task_id in after]
    learnt = [pair for pair in pairs if pair[0].status != "success" and pair[1].status == "success"]
    return next(iter([*learnt, *pairs]), ())


def _write_turn(number: int, lines: Sequence[str], frame: ReplayFrame) -> str:
    seen = " | ".join(lines)
    if len(seen) > MAX_CHARS:
        seen = f"{seen[: MAX_CHARS - 1]}…"
    return f"{number:2}  {seen:<{MAX_CHARS}}  > {', '.join(frame.actions) or frame.problem or frame.reply}"
