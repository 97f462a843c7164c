"""Many copies of one environment, stepped together; one that fails does not stop the others.

An environment that raises yields a `Turn` with an `EnvError` (the cause attached) and is left out until
its next reset. The same holds for one that calls `sys.exit`. Mistakes of the caller about the batch itself
(an unknown index, more or fewer actions than indices) are raised at once.

The environments run one after the other in the caller's thread: a batch belongs to one thread at a time.
Environments that wait (`Env.waits`) are stepped concurrently (`waiting.py`): a turn of the batch takes as
long as its slowest environment, and calls on different environments may overlap. The turns are the same, in
the same order. Environments of a vectorised simulator (`Env.is_vector`) are its places and move together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import Any, Self, TypeVar

from stepwell.config.base import Settings
from stepwell.core import InputError, Task
from stepwell.envs.base import Env
from stepwell.envs.registry import find_env_type, make_env
from stepwell.envs.robots.base import RobotEnv
from stepwell.envs.robots.vector import VectorRobotEnv, reset_together, step_together
from stepwell.envs.turns import (
    Turn,
    make_failed_turn,
    note_failed_state,
    play_turn,
    read_state,
    start_episode,
)
from stepwell.envs.waiting import WaitingEnvs, make_waiting_envs

T = TypeVar("T")


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
        kind, make = find_env_type(name), partial(make_env, name, options)
        self._waiting: WaitingEnvs | None = make_waiting_envs(kind, name, make, size) if kind.waits else None
        self.envs: list[Env] = [make() for _ in range(size)] if self._waiting is None else self._waiting.envs
        self._is_vector = issubclass(kind, VectorRobotEnv)
        if issubclass(kind, VectorRobotEnv):
            kind.join_places(self.envs)  # type: ignore[arg-type]
        elif self._waiting is None:
            for env in self.envs[1:]:
                if isinstance(env, RobotEnv):
                    env.share(self.envs[0])

    @property
    def waits(self) -> bool:
        """Whether its environments wait, so that they are stepped concurrently."""
        return self._waiting is not None

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
        if self._waiting is not None:
            return _collect_turns(self.start_reset(tasks, indices, seeds, with_state=with_state), progress)
        self._check_indices(indices, len(tasks), "tasks")
        if self._is_vector:
            turns = reset_together(self._select(indices), tasks, _fill_seeds(seeds, len(tasks)))
            return self._end_call(indices, turns, with_state, progress)
        turns = []
        for index, task, seed in zip(indices, tasks, _fill_seeds(seeds, len(tasks)), strict=True):
            try:
                turns.append(start_episode(self.envs[index], task, seed))
            except (Exception, SystemExit) as error:
                turns.append(make_failed_turn(self.name, index, error))
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
        if self._waiting is not None:
            return _collect_turns(self.start_step(indices, actions, with_state=with_state), progress)
        self._check_indices(indices, len(actions), "action lists")
        if self._is_vector:
            turns = step_together(self._select(indices), actions)
            return self._end_call(indices, turns, with_state, progress)
        turns = []
        for index, acts in zip(indices, actions, strict=True):
            try:
                turns.append(play_turn(self.envs[index], acts))
            except (Exception, SystemExit) as error:
                turns.append(make_failed_turn(self.name, index, error))
            progress()
        if with_state:
            self._add_states(indices, turns)
        return turns

    def start_reset(
        self,
        tasks: Sequence[Task],
        indices: Sequence[int],
        seeds: Sequence[int] | None = None,
        *,
        with_state: bool = False,
    ) -> list[Future[Turn]]:
        """As `reset`, of environments that wait, without waiting for them."""
        assert self._waiting is not None, f"{self.name} does not wait"
        self._check_indices(indices, len(tasks), "tasks")
        return [
            self._waiting.start_reset(index, task, seed, with_state)
            for index, task, seed in zip(indices, tasks, _fill_seeds(seeds, len(tasks)), strict=True)
        ]

    def start_step(
        self, indices: Sequence[int], actions: Sequence[Any], *, with_state: bool = False
    ) -> list[Future[Turn]]:
        """As `step`, of environments that wait, without waiting for them."""
        assert self._waiting is not None, f"{self.name} does not wait"
        self._check_indices(indices, len(actions), "action lists")
        return [
            self._waiting.start_step(index, acts, with_state)
            for index, acts in zip(indices, actions, strict=True)
        ]

    def ask(self, index: int, question: Callable[[Any], T]) -> T:
        """The answer of one environment to anything but a turn, asked in the thread where it lives."""
        return question(self.envs[index]) if self._waiting is None else self._waiting.ask(index, question)

    def _select(self, indices: Sequence[int]) -> list[VectorRobotEnv]:
        return [self.envs[index] for index in indices]  # type: ignore[misc]

    def _end_call(
        self, indices: Sequence[int], turns: list[Turn], with_state: bool, progress: Callable[[], None]
    ) -> list[Turn]:
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
                note_failed_state(turn, self.name, error)

    def close(self) -> None:
        """Close every environment."""
        if self._waiting is not None:
            self._waiting.close()
            return
        for env in self.envs:
            env.close()

    def _check_indices(self, indices: Sequence[int], count: int, what: str) -> None:
        if len(indices) != count:
            raise InputError(f"{count} {what} for {len(indices)} environments")
        if indices and not 0 <= min(indices) <= max(indices) < len(self.envs):
            raise InputError(f"environments are numbered 0..{len(self.envs) - 1}, got {list(indices)}")
        if len(set(indices)) != len(indices):
            raise InputError(f"each environment takes one turn at a time, got indices {list(indices)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fill_seeds(seeds: Sequence[int] | None, count: int) -> Sequence[int | None]:
    if seeds is not None and len(seeds) != count:
        raise InputError(f"{len(seeds)} seeds for {count} tasks")
    return [None] * count if seeds is None else seeds


def _collect_turns(futures: Sequence[Future[Turn]], progress: Callable[[], None]) -> list[Turn]:
    """The turns in order, once all have arrived."""
    for _ in as_completed(futures):
        progress()
    return [future.result() for future in futures]
