"""The Fetch environments of Gymnasium-Robotics, started from given positions instead of a random state."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.envs.robots import models
from stepwell.envs.robots.packages import import_simulator

CLASSES = {
    "reach": "MujocoFetchReachEnv",
    "push": "MujocoFetchPushEnv",
    "slide": "MujocoFetchSlideEnv",
    "pick_and_place": "MujocoFetchPickAndPlaceEnv",
}


class StartStateMixin:
    """What is put in front of a Fetch class; `restart` takes the place of `reset`."""

    def restart_at(
        self: Any, place: npt.NDArray[np.float64] | None, goal: npt.NDArray[np.float64]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Object (in the plane) and goal as offsets from where the gripper starts."""
        mujoco = models.import_mujoco("fetch")
        mujoco.mj_resetData(self.model, self.data)
        self.data.time = self.initial_time
        self.data.qpos[:], self.data.qvel[:] = self.initial_qpos, self.initial_qvel
        self.goal = self.initial_gripper_xpos + goal
        if place is not None:
            joint = self.model.joint("object0:joint").qposadr[0]
            self.data.qpos[joint : joint + 2] = self.initial_gripper_xpos[:2] + place
            self.goal[2] = self.height_offset + goal[2]
        target = self.model.site("target0")
        target.pos = self.goal - self.model.body(int(target.bodyid[0])).pos  # a body of the world itself
        mujoco.mj_forward(self.model, self.data)
        seen: dict[str, npt.NDArray[np.float64]] = self._get_obs()
        return seen

    def _initialize_simulation(self: Any) -> None:
        self.model = models.make_model(self.fullpath, "fetch")
        self.data = models.import_mujoco("fetch").MjData(self.model)
        self._model_names = self._utils.MujocoModelNames(self.model)
        self._env_setup(initial_qpos=self.initial_qpos)
        self.initial_time = self.data.time
        self.initial_qpos = np.copy(self.data.qpos)
        self.initial_qvel = np.copy(self.data.qvel)


@lru_cache(maxsize=8)
def _make_simulator_type(task: str) -> type[Any]:
    module = import_simulator(f"gymnasium_robotics.envs.fetch.{task}", env="fetch", extra="fetch")
    return type("Given", (StartStateMixin, getattr(module, CLASSES[task])), {})


def open_simulator(task: str) -> Any:
    """A Fetch environment whose reward is minus the distance to the goal."""
    return _make_simulator_type(task)(reward_type="dense")
