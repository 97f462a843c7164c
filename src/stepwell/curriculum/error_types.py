"""How an episode failed: four types, for every environment, found from its steps alone.

    no reasonable attempt        no reply could be read as an action, or none led anywhere
    stuck midway                 the same action in the same state again, or three times in a row
    stopped at the wrong place   the episode ended before the turn limit: the agent left, or fell
    did not recover              it kept trying something new until the turn limit

The first type that fits counts, in this order. It is a rule over actions and observations; it does
not judge what the agent meant.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from stepwell.core import ArrayAction, Step, TokenAction, Trajectory

REPEATS = 3


class ErrorType(StrEnum):
    """How an episode failed."""

    NO_ATTEMPT = "no reasonable attempt"
    STUCK = "stuck midway"
    WRONG_PLACE = "stopped at the wrong place"
    NO_RECOVERY = "did not recover"


def classify_failure(trajectory: Trajectory, max_turns: int | None) -> ErrorType:
    """The type of a trajectory that did not succeed; `max_turns` is the environment's limit, if known."""
    turns = [step for step in trajectory.steps if not step.is_summary]
    tried = [step for step in turns if not step.info.get("problem")]
    if not tried or (len(turns) > 1 and _stays_in_place(turns)):
        return ErrorType.NO_ATTEMPT
    if _repeats_itself(tried):
        return ErrorType.STUCK
    if trajectory.status.is_terminated and (max_turns is None or len(turns) < max_turns):
        return ErrorType.WRONG_PLACE
    return ErrorType.NO_RECOVERY


def _stays_in_place(turns: list[Step]) -> bool:
    """Whether every turn saw the same observation."""
    anchors = {step.anchor for step in turns}
    return len(anchors) == 1 and None not in anchors


def _repeats_itself(turns: list[Step]) -> bool:
    texts = [_read_action(step) for step in turns]
    in_row = any(len(set(texts[i : i + REPEATS])) == 1 for i in range(len(texts) - REPEATS + 1))
    pairs = Counter(
        (step.anchor, text) for step, text in zip(turns, texts, strict=True) if step.anchor is not None
    )
    return in_row or max(pairs.values(), default=0) >= 2


def _read_action(step: Step) -> str:
    if isinstance(step.action, ArrayAction):
        return str(step.action.chunk.tolist())
    ids = step.action.action_ids.tolist() if isinstance(step.action, TokenAction) else ""
    return step.action.text or str(ids)
