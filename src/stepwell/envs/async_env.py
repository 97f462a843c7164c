"""An environment whose work is coroutines: many of them wait at once, in one thread.

A browser driven by an asynchronous library is the example. Such an environment implements

    begin_async     task, seed            puts the environment into the task's first state
    act_async       one action -> Effect  one primitive action
    observe_async   -> Observation        what the agent sees now; awaited once after a reset and every turn
    close_async                           releases what it holds

beside `description`, `make_task` and `oracle` of every `Env`. A batch awaits its environments together on the
event loop of the process (`env_loop.py`). The interface of `Env` stays: `reset`, `step` and `close` run the
coroutines on that loop and wait, so a checker, a player or a demonstration needs to know nothing of this.

Invariants
* All coroutines of all copies run on one loop, so copies may share what belongs to a loop.
* Turns, limits and refusals are those of `Env`.
* `observe` is the observation that the last reset or turn ended with. `state`, `render` and `oracle` are
  plain functions. One that needs the loop runs its coroutine by `run_on_env_loop`, and then defines
  `state_async` too, which is what a batch awaits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import JSON, InputError, Observation, StateForm, Task
from stepwell.envs.base import NOTHING, Effect, Env
from stepwell.envs.env_loop import run_on_env_loop


class AsyncEnv(Env):
    """An environment that agents act in, whose waiting is awaited."""

    waits: ClassVar[bool] = True

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._observation: Observation | None = None

    @abstractmethod
    async def begin_async(self, task: Task, seed: int) -> None:
        """Put the environment into the first state of `task`; `seed` drives its randomness, if any."""

    @abstractmethod
    async def act_async(self, action: str) -> Effect:
        """Execute one primitive action; its name has been checked."""

    @abstractmethod
    async def observe_async(self) -> Observation:
        """What the agent sees now."""

    async def close_async(self) -> None:
        """Release the environment's resources; calling it twice is allowed."""

    async def state_async(self) -> dict[StateForm, str]:
        """The true state, as of `state`."""
        return self.state()

    async def reset_async(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, JSON]]:
        """Start an episode: of `options["task"]`, or else of the task that `seed` makes."""
        task = self._prepare_episode(seed, options)
        self._observation = None
        await self.begin_async(task, task.seed if seed is None else seed)
        self._task, self._is_over, self._num_turns = task, False, 0
        self._observation = await self.observe_async()
        return self._observation, self._describe_start()

    async def step_async(
        self, actions: Sequence[str]
    ) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn: `actions` in order until one ends the episode."""
        self._check_turn(actions)
        reward, process, num_actions, effect = 0.0, 0.0, 0, NOTHING
        for action in actions:
            effect = await self.act_async(action)
            reward += effect.reward
            process += effect.process
            num_actions += 1
            if effect.terminated or effect.truncated:
                break
        terminated, info = self._end_turn(effect, num_actions, process)
        self._observation = await self.observe_async()
        return self._observation, reward, terminated, effect.truncated, info

    # --- the interface of `Env` -----------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, JSON]]:
        """Start an episode and wait for it."""
        return run_on_env_loop(self.reset_async(seed=seed, options=options))

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn and wait for it."""
        return run_on_env_loop(self.step_async(actions))

    def begin(self, task: Task, seed: int) -> None:
        """Begin and wait for it."""
        run_on_env_loop(self.begin_async(task, seed))

    def act(self, action: str) -> Effect:
        """Execute one action and wait for it."""
        return run_on_env_loop(self.act_async(action))

    def observe(self) -> Observation:
        """The last observation."""
        if self._observation is None:
            raise InputError(f"{self.name} has shown nothing yet; call reset first")
        return self._observation

    def close(self) -> None:
        """Close and wait for it."""
        run_on_env_loop(self.close_async())
