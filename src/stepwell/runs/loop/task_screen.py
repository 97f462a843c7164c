"""The screen of evolved tasks: the oracle solves them, and the critic finds them neither easy nor hopeless.

    task ─► the oracle plays it ─► infeasible │ first state ─► critic ─► too hard │ too easy │ kept
       └─ no oracle, but a model found it feasible ─► it is started ─► cannot start ┘

The oracle's episode is recorded as any other, so its first state is exactly what the policy would see. A task
that a model wrote may have no oracle; it is started then, and nothing is done in it.
Without a critic, or in an asynchronous run, where the weights may change meanwhile, no task is too easy or
too hard.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core import ContextLengthError, State, Task, Trajectory
from stepwell.curriculum import ScreenResult
from stepwell.runs.build.components import Components

INFEASIBLE, TOO_HARD, TOO_EASY, CANNOT_START = "infeasible", "too hard", "too easy", "cannot start"


class OracleScreen:
    """Screens tasks with the environment, the oracle and the critic of a run.

    `needs_oracle`: a task that has no oracle is infeasible; else a model was asked whether it is feasible.
    """

    def __init__(self, components: Components, *, needs_oracle: bool = True) -> None:
        self._components, self._needs_oracle = components, needs_oracle
        self._asks_critic = components.recipe.needs_critic and components.config.workers.mode == "off"

    def __call__(self, tasks: Sequence[Task]) -> list[ScreenResult]:
        """One result per task, in order."""
        has_oracle = self._components.envs.envs[0].has_oracle
        playable = [task for task in tasks if has_oracle and task.has_checker]
        shown = self._play_oracle(playable)
        starts = {id: each.steps[0].state for id, each in shown.items()}
        failed = {task.id: INFEASIBLE for task in playable if task.id not in shown}
        others = [task for task in tasks if not (has_oracle and task.has_checker)]
        if self._needs_oracle:
            failed |= {task.id: INFEASIBLE for task in others}
        else:
            starts |= self._start_tasks(others)
            failed |= {task.id: CANNOT_START for task in others if task.id not in starts}
        left = [task for task in tasks if task.id not in failed]
        values = iter(self._read_values([starts[task.id] for task in left]))
        return [
            ScreenResult(failed[task.id])
            if task.id in failed
            else self._judge_value(next(values), shown[task.id].num_turns if task.id in shown else None)
            for task in tasks
        ]

    def _play_oracle(self, tasks: Sequence[Task]) -> dict[str, Trajectory]:
        """The oracle's successful episodes, by task."""
        if not tasks:
            return {}
        shown = self._components.backend.demonstrate(list(tasks), 0.0, self._components.config.seed)
        return {each.task.id: each for each in shown if each.is_success and each.steps}

    def _start_tasks(self, tasks: Sequence[Task]) -> dict[str, State]:
        """The first states of the tasks that can be started."""
        envs, player = self._components.envs, self._components.language.player
        states: dict[str, State] = {}
        for first in range(0, len(tasks), len(envs.envs)):
            some = tasks[first : first + len(envs.envs)]
            for task, turn in zip(some, envs.reset(some), strict=True):
                try:
                    if turn.error is None:
                        states[task.id] = player.open_conversation(turn.observation).state
                except ContextLengthError:  # its first page leaves no room for an action
                    continue
        return states

    def _read_values(self, states: Sequence[State]) -> list[float | None]:
        if not self._asks_critic or not states:
            return [None] * len(states)
        scale = self._components.config.rewards.scale
        return [float(value) / scale for value in self._components.policy.state_values(states)]

    def _judge_value(self, value: float | None, num_turns: int | None) -> ScreenResult:
        band = self._components.config.curriculum
        reason = ""
        if value is not None:
            reason = TOO_HARD if value < band.min_value else TOO_EASY if value > band.max_value else ""
        return ScreenResult(reason, value, num_turns)
