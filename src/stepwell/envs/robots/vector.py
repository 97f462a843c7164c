"""Robot environments that live in one vectorised simulator and move together, as on a GPU.

    EnvBatch ─► VectorRobotEnv × size ─► one VectorSimulator      one call moves all places

A simulator of many scenes (on a GPU, or arrays on a CPU) cannot move one place alone. It implements

    begin    places, tasks, seeds              puts these places into their first states; the others stay
    act      actions [size, D], moving [size]  moves every place; `moving` says which ones count
    arrays   place -> named arrays             as `RobotEnv.arrays`; so are `facts` and `image`

and its environment subclasses `VectorRobotEnv`: `layout`, `make_task` and `open_simulator(size)`.

Invariants
* A batch has one simulator. An environment outside of a batch has one of size 1.
* Episodes are those of a simulator of size 1: a place never depends on its neighbours.
* The chunks of one call have one length. A place that is left out of a call moves too: its
  episode is lost, and its next step is refused. Rollouts step all running places of a batch together.
* A simulator that raises fails the episodes of all its places, and a new one is opened at the next reset.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from stepwell.config.base import Settings
from stepwell.core import JSON, InputError, Task
from stepwell.envs.robots.base import ActionEffect, Arrays, ChunkResult, FloatArray, RobotEnv
from stepwell.envs.tiles import Image
from stepwell.envs.turns import Turn, make_failed_turn

Flags = npt.NDArray[np.bool_]


class VectorSimulator(Protocol):
    """`size` scenes that move together."""

    def begin(self, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]) -> None:
        """Put these places into the first states of these tasks."""

    def act(self, actions: FloatArray, moving: Flags) -> Sequence[ActionEffect]:
        """One action [D] in [-1, 1] for every place; what it did, by place."""

    def arrays(self, place: int) -> Arrays:
        """What the policy sees there now, in arrays that later actions do not change."""

    def facts(self, place: int) -> dict[str, JSON]:
        """The true state of a place as named numbers and lists of numbers."""

    def image(self, place: int, camera: str) -> Image:
        """A place through one camera."""

    def close(self) -> None:
        """Release what it holds."""


class SharedSimulator:
    """The simulator of a batch, opened at the first reset and again after it has failed."""

    def __init__(self, envs: Sequence[VectorRobotEnv]) -> None:
        self.envs = list(envs)
        self._simulator: VectorSimulator | None = None

    def open(self) -> VectorSimulator:
        """The simulator, opened if need be."""
        if self._simulator is None:
            self._simulator = self.envs[0].open_simulator(len(self.envs))
        return self._simulator

    def drop(self) -> None:
        """Close the simulator and end the episodes of all its places."""
        for env in self.envs:
            env.end_episode()
        simulator, self._simulator = self._simulator, None
        if simulator is not None:
            simulator.close()


class VectorRobotEnv(RobotEnv):
    """One place of a vectorised simulator."""

    is_vector: ClassVar[bool] = True

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._place, self._shared = 0, SharedSimulator([self])

    @abstractmethod
    def open_simulator(self, size: int) -> VectorSimulator:
        """A simulator of this many scenes under this environment's options."""

    @classmethod
    def join_places(cls, envs: Sequence[Self]) -> None:
        """Let these environments be the places of one simulator."""
        shared = SharedSimulator(envs)
        for place, env in enumerate(envs):
            env.close()
            env._place, env._shared = place, shared

    @property
    def is_running(self) -> bool:
        """Whether an episode is under way."""
        return not self._is_over

    def end_episode(self) -> None:
        """The episode cannot go on: the next step is refused."""
        self._is_over = True

    def begin(self, task: Task, seed: int) -> None:
        """Begin in this place alone."""
        self._shared.open().begin([self._place], [task], [seed])

    def act(self, action: FloatArray) -> ActionEffect:
        """Move this place; the episodes of its neighbours are lost."""
        return move_places([self], action[None])[0]

    def arrays(self) -> Arrays:
        return self._shared.open().arrays(self._place)

    def facts(self) -> dict[str, JSON]:
        return self._shared.open().facts(self._place)

    def image(self, camera: str) -> Image:
        return self._shared.open().image(self._place, camera)

    def close(self) -> None:
        """Close the simulator, of all places."""
        self._shared.drop()


def move_places(envs: Sequence[VectorRobotEnv], actions: FloatArray) -> list[ActionEffect]:
    """One action [n, D] in these places of one simulator."""
    shared, places = envs[0]._shared, [env._place for env in envs]
    for neighbour in shared.envs:
        if neighbour.is_running and neighbour._place not in places:
            neighbour.end_episode()
    moving = np.zeros(len(shared.envs), bool)
    moving[places] = True
    every = np.zeros((len(shared.envs), actions.shape[1]), np.float32)
    every[places] = actions
    moved = shared.open().act(every, moving)
    return [moved[place] for place in places]


def reset_together(
    envs: Sequence[VectorRobotEnv], tasks: Sequence[Task], seeds: Sequence[int | None]
) -> list[Turn]:
    """Begin an episode in each of these places, by one call of their simulator."""
    if not envs:
        return []
    starts = [task.seed if seed is None else seed for task, seed in zip(tasks, seeds, strict=True)]
    for env in envs:
        env.forget_episode()
    try:
        envs[0]._shared.open().begin([env._place for env in envs], tasks, starts)
        return [Turn(env.start_counting(task)) for env, task in zip(envs, tasks, strict=True)]
    except (Exception, SystemExit) as error:
        return _fail_places(envs, error)


def step_together(envs: Sequence[VectorRobotEnv], chunks: Sequence[Any]) -> list[Turn]:
    """Execute one chunk [C, D] in each of these places, an action of all places at a time."""
    turns: list[Turn | None] = [None] * len(envs)
    checked: dict[int, FloatArray] = {}
    for index, (env, chunk) in enumerate(zip(envs, chunks, strict=True)):
        try:
            checked[index] = env.check_turn(chunk)
        except InputError as error:  # a mistake about one place costs its own episode
            env.end_episode()
            turns[index] = make_failed_turn(env.name, env._place, error)
    if len({len(chunk) for chunk in checked.values()}) > 1:
        raise InputError(
            f"chunks of a batch of {envs[0].name} must have one length: its places move together"
        )
    results = {index: ChunkResult() for index in checked}
    live = sorted(checked)
    try:
        for position in range(len(checked[live[0]]) if live else 0):
            actions = np.stack([checked[index][position] for index in live])
            for index, moved in zip(live, move_places([envs[i] for i in live], actions), strict=True):
                envs[index].note_move(results[index], moved)
                if not envs[index].is_running:  # seen before its neighbours move on
                    turns[index] = _end_turn(envs[index], results[index])
            live = [index for index in live if envs[index].is_running]
            if not live:
                break
        for index in live:
            turns[index] = _end_turn(envs[index], results[index])
    except (Exception, SystemExit) as error:
        return _fail_places(envs, error)
    return [turn for turn in turns if turn is not None]


def _end_turn(env: VectorRobotEnv, result: ChunkResult) -> Turn:
    observation, reward, terminated, truncated, info = env.end_chunk(result)
    return Turn(observation, reward, terminated, truncated, info)


def _fail_places(envs: Sequence[VectorRobotEnv], error: BaseException) -> list[Turn]:
    envs[0]._shared.drop()
    return [make_failed_turn(env.name, env._place, error) for env in envs]
