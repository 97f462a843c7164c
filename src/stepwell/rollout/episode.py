"""An episode so far, and its earlier turns as its agent sees them later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.agents import PastTurn
from stepwell.core import JSON, ArrayState, EnvError, Observation, SamplingParams, Status, Step
from stepwell.envs.turns import Turn
from stepwell.rollout.jobs import Job

if TYPE_CHECKING:
    from stepwell.rendering import Message  # not at run time: robots need nothing of rendering

_SEED_STEP = 1_000_003


class PastMessages(NamedTuple):
    """An earlier turn of a conversation: the message to the agent, and its reply."""

    message: Message
    reply: Message


@dataclass(slots=True)
class Episode:
    """An episode so far. `place` is the number of its environment; `own` belongs to the player."""

    place: int
    job: Job
    observation: Observation | ArrayState
    first_text: str = ""  # the first observation, where it is all that tells the task
    steps: list[Step] = field(default_factory=list)
    state: dict[str, JSON] = field(default_factory=dict)
    num_actions: int = 0
    golden: int | None = None
    status: Status | None = None
    error: str = ""
    engine_s: float = 0.0
    own: Any = None
    turns: list[PastMessages] = field(default_factory=list)  # in the present prompt
    message: Message | None = None  # the last one that the agent got
    next_message: Message | None = None  # after the summary that the policy is asked for now

    def mark_failed(self, error: Exception) -> None:
        """End it because the system failed."""
        self.status, self.error = Status.INFRA_ERROR, str(error) or type(error).__name__

    def end_if_failed(self, turn: Turn, env_name: str) -> bool:
        """End it if the system failed in this turn, or its reward is not finite; returns whether it ended."""
        if turn.error is None and not math.isfinite(turn.reward):
            turn.error = EnvError(f"{env_name} gave the reward {turn.reward}; rewards must be finite")
        if turn.error is not None:
            self.mark_failed(turn.error)
        return turn.error is not None

    def seed_params(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters of its next action, with a seed that depends on nothing but the episode."""
        return params.with_seed((self.job.seed + len(self.steps) * _SEED_STEP) % 2**63)


def make_past_turns(steps: Sequence[Step]) -> list[PastTurn]:
    """Recorded steps as their agent sees them later; summaries do not count as turns."""
    infos: list[Any] = [step.info for step in steps if not step.is_summary]
    return [PastTurn(tuple(info["actions"]), info.get("lost", ""), info.get("result", "")) for info in infos]
