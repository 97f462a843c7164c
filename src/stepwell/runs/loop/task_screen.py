"""The screen of evolved tasks: the oracle solves them, and the critic finds them neither easy nor hopeless.

    task ─► the oracle plays it ─► infeasible │ first state ─► critic ─► too hard │ too easy │ kept

The oracle's episode is recorded as any other, so its first state is exactly what the policy would see.
Without a critic, or in an asynchronous run, where the weights may change meanwhile, no task is too easy or
too hard.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core import State, Task, Trajectory
from stepwell.curriculum import ScreenResult
from stepwell.runs.build.components import Components

INFEASIBLE, TOO_HARD, TOO_EASY = "infeasible", "too hard", "too easy"


class OracleScreen:
    """Screens tasks with the environment, the oracle and the critic of a run."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._asks_critic = components.recipe.needs_critic and components.config.workers.mode == "off"

    def __call__(self, tasks: Sequence[Task]) -> list[ScreenResult]:
        """One result per task, in order."""
        shown = self._play_oracle(tasks)
        played = [shown.get(task.id) for task in tasks]
        states = [each.steps[0].state for each in played if each is not None]
        values = iter(self._read_values(states))
        return [
            ScreenResult(INFEASIBLE) if each is None else self._judge_value(next(values), each.num_turns)
            for each in played
        ]

    def _play_oracle(self, tasks: Sequence[Task]) -> dict[str, Trajectory]:
        """The oracle's successful episodes, by task."""
        shown = self._components.backend.demonstrate(list(tasks), 0.0, self._components.config.seed)
        return {each.task.id: each for each in shown if each.is_success and each.steps}

    def _read_values(self, states: Sequence[State]) -> list[float | None]:
        if not self._asks_critic or not states:
            return [None] * len(states)
        scale = self._components.config.rewards.scale
        return [float(value) / scale for value in self._components.policy.state_values(states)]

    def _judge_value(self, value: float | None, num_turns: int) -> ScreenResult:
        band = self._components.config.curriculum
        reason = ""
        if value is not None:
            reason = TOO_HARD if value < band.min_value else TOO_EASY if value > band.max_value else ""
        return ScreenResult(reason, value, num_turns)
