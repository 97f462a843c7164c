"""Many copies of one environment, stepped together; one that fails does not stop the others.

An environment that raises yields a `Turn` with an `EnvError` (the cause attached) and is left out until
its next reset. The same holds for one that calls `sys.exit`. Mistakes of the caller about the batch itself
(an unknown index, more or fewer actions than indices) are raised at once. The environments run one after the
other: a batch belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from stepwell.config.base import Settings
from stepwell.core import EnvError, InputError, Task
from stepwell.core.text import clean_texts
from stepwell.envs.base import Env
from stepwell.envs.registry import make_env
from stepwell.envs.robots.base import RobotEnv
from stepwell.envs.turns import Turn, play_turn, read_state


def _ignore_progress() -> None:
    return


class EnvBatch:
    """`size` copies of the environment `name`.

    >>> batch = EnvBatch("frozenlake", {}, size=2)
    >>> tasks = [batch.envs[0].make_task(batch.envs[0].options, seed) for seed in (0, 1)]
    >>> len(batch.reset(tasks)), batch.step([1], [("Up", "Left")])[0].info["num_actions"] > 0
    (2, True)
    """

    def __init__(self, name: str, options: Mapping[str, Any] | Settings | None, size: int) -> None:
        if size < 1:
            raise InputError(f"size of an EnvBatch must be at least 1, got {size}")
        self.name = name
        self.envs: list[Env] = [make_env(name, options) for _ in range(size)]
        for env in self.envs[1:]:
            if isinstance(env, RobotEnv):
                env.share(self.envs[0])

    def reset(
        self,
        tasks: Sequence[Task],
        indices: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        *,
        with_state: bool = False,
        progress: Callable[[], None] = _ignore_progress,
    ) -> list[Turn]:
        """Start one episode per task, in the first environments or in those of `indices`.

        `progress` is called after each environment, here and in `step`.
        """
        indices = range(len(tasks)) if indices is None else indices
        self._check_indices(indices, len(tasks), "tasks")
        if seeds is not None and len(seeds) != len(tasks):
            raise InputError(f"{len(seeds)} seeds for {len(tasks)} tasks")
        turns = []
        for position, (index, task) in enumerate(zip(indices, tasks, strict=True)):
            try:
                seed = None if seeds is None else seeds[position]
                observation, info = self.envs[index].reset(seed=seed, options={"task": task})
                turns.append(Turn(observation, info=clean_texts(info)))
            except (Exception, SystemExit) as error:
                turns.append(self._describe_failure(index, error))
            progress()
        if with_state:
            self._add_states(indices, turns)
        return turns

    def step(
        self,
        indices: Sequence[int],
        actions: Sequence[Any],
        *,
        with_state: bool = False,
        progress: Callable[[], None] = _ignore_progress,
    ) -> list[Turn]:
        """One turn in each of the environments of `indices`: names of actions, or a chunk of a robot's."""
        self._check_indices(indices, len(actions), "action lists")
        turns = []
        for index, acts in zip(indices, actions, strict=True):
            try:
                turns.append(play_turn(self.envs[index], acts))
            except (Exception, SystemExit) as error:
                turns.append(self._describe_failure(index, error))
            progress()
        if with_state:
            self._add_states(indices, turns)
        return turns

    def _add_states(self, indices: Sequence[int], turns: Sequence[Turn]) -> None:
        for index, turn in zip(indices, turns, strict=True):
            if turn.error is not None:
                continue
            try:
                turn.state = read_state(self.envs[index])
            except (Exception, SystemExit) as error:
                turn.error = EnvError(f"{self.name}: state() raised {type(error).__name__}: {error}")
                turn.error.__cause__ = error

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _check_indices(self, indices: Sequence[int], count: int, what: str) -> None:
        if len(indices) != count:
            raise InputError(f"{count} {what} for {len(indices)} environments")
        if indices and not 0 <= min(indices) <= max(indices) < len(self.envs):
            raise InputError(f"environments are numbered 0..{len(self.envs) - 1}, got {list(indices)}")
        if len(set(indices)) != len(indices):
            raise InputError(f"each environment takes one turn at a time, got indices {list(indices)}")

    def _describe_failure(self, index: int, error: BaseException) -> Turn:
        problem = EnvError(f"{self.name} (environment {index}) raised {type(error).__name__}: {error}")
        problem.__cause__ = error
        return Turn(error=problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
