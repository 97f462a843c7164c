"""Meta-World's environments, opened and reset quickly, and with nothing left of the episode before.

An episode starts as in a fresh Meta-World environment whose random vector is the task's. Three
things are done in less time:

* The model file is compiled once per process. A copy of the result takes 20 MB and 20 milliseconds, so the
  environments of a batch share one: what episodes write into it is changed when another environment takes its
  turn.
* Meta-World moves the hand to its start by simulating 50 steps, twice per reset. They do not depend on
  the task, so the state they end in is stored once per process and put back.
* Positions that earlier episodes wrote into the model are restored before a reset, so that no episode depends
  on those before it.

A vector that Meta-World's own sampling would have rejected makes its reset loop for ever; here it is
an `InputError`.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import InputError
from stepwell.envs.robots import models
from stepwell.envs.robots.packages import import_simulator

Vector = npt.NDArray[np.float64]


class SharedModel:
    """A model for environments that take turns: it holds the positions of the one that had it last.

    Where bodies and sites are is all in a model that differs between the episodes of a task.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self._pristine: tuple[Vector, Vector] = np.empty(0), np.empty(0)
        self._holder: Any = None  # whose positions the model holds

    def give_to(self, env: Any) -> Any:
        """The model, with the positions of `env`; those of a new one are the model file's."""
        if self._model is None:
            self._model = models.make_model(env.fullpath, "metaworld")
            self._pristine = self._copy_positions()
        if self._holder is not env:
            if self._holder is not None:
                self._holder._positions = self._copy_positions()
            self._write_positions(self._pristine if env._positions is None else env._positions)
            self._holder = env
        return self._model

    def restore_positions(self) -> None:
        """Positions as the model file has them."""
        self._write_positions(self._pristine)

    def _copy_positions(self) -> tuple[Vector, Vector]:
        return self._model.body_pos.copy(), self._model.site_pos.copy()

    def _write_positions(self, positions: tuple[Vector, Vector]) -> None:
        self._model.body_pos[:], self._model.site_pos[:] = positions


class QuickStart:
    """What is put in front of a Meta-World class; `restart` takes the place of `reset`.

    Before anything else is asked of it, it must have taken its model.
    """

    _num_drawn = 0
    _positions: tuple[Vector, Vector] | None = None  # in the model, while another environment has it

    def __init__(self, shared: SharedModel) -> None:
        self._shared = shared
        super().__init__()

    def take_model(self) -> None:
        """From the environment that had it last."""
        self._shared.give_to(self)

    def restart_at(self: Any, vector: Vector) -> Vector:
        """The observation [39] at the start of the episode that `vector` decides."""
        mujoco = models.import_mujoco("metaworld")
        self._shared.restore_positions()
        self._last_rand_vec = vector
        self.curr_path_length = 0
        for _ in range(2):  # the second time with bodies and sites where the first has put them
            mujoco.mj_resetData(self.model, self.data)
            self._num_drawn = 0
            observation = self.reset_model()
        self._prev_obs = observation[:18].copy()
        observation[18:36] = self._prev_obs
        return np.asarray(observation, dtype=np.float64)

    def _initialize_simulation(self: Any) -> tuple[Any, Any]:
        model = self._shared.give_to(self)
        return model, models.import_mujoco("metaworld").MjData(model)

    def _reset_hand(self: Any, steps: int = 50) -> None:
        mujoco = models.import_mujoco("metaworld")
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        key = (self.fullpath, steps, tuple(self.hand_init_pos))
        if key not in _HAND_AT_START:
            super()._reset_hand(steps)  # type: ignore[misc]
            _HAND_AT_START[key] = np.empty(mujoco.mj_stateSize(self.model, kind))
            mujoco.mj_getState(self.model, self.data, _HAND_AT_START[key], kind)
        mujoco.mj_setState(self.model, self.data, _HAND_AT_START[key], kind)
        mujoco.mj_forward(self.model, self.data)
        self.init_tcp = self.tcp_center

    def _get_state_rand_vec(self: Any) -> Vector:
        self._num_drawn += 1
        if self._num_drawn > 1:
            raise InputError(
                f"content.vector {list(self._last_rand_vec)} puts object and goal too near together"
            )
        return np.array(self._last_rand_vec)


_HAND_AT_START: dict[tuple[Any, ...], npt.NDArray[np.float64]] = {}


@lru_cache(maxsize=64)
def make_simulator_type(task: str) -> type[Any]:
    """The quick variant of Meta-World's class for `task` (with its version: 'reach-v3')."""
    env_dict = import_simulator("metaworld.env_dict", env="metaworld", extra="metaworld")
    # experts ask for more than [-1, 1] on purpose; the environment clips
    warnings.filterwarnings("ignore", message="Constant\\(s\\) may be too high")
    return type("Quick", (QuickStart, env_dict.ALL_V3_ENVIRONMENTS[task]), {})


def open_simulator(task: str, shared: SharedModel | None = None) -> Any:
    """A Meta-World environment that shows its goal and counts no steps of its own."""
    env = make_simulator_type(task)(SharedModel() if shared is None else shared)
    env._freeze_rand_vec = True
    env._set_task_called = True
    env._partially_observable = False
    env.__dict__.pop("sawyer_observation_space", None)  # computed for hidden goals
    env.max_path_length = 1 << 40
    return env


@lru_cache(maxsize=64)
def find_vector_bounds(task: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lowest and highest random vector of a task."""
    space = open_simulator(task)._random_reset_space
    return tuple(map(float, space.low)), tuple(map(float, space.high))


def make_expert(task: str) -> Any:
    """The scripted policy that Meta-World ships for a task."""
    policies = import_simulator("metaworld.policies", env="metaworld", extra="metaworld")
    return policies.ENV_POLICY_MAP[task]()
