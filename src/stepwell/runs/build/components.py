"""The components of a run, built from its settings and wired together.

    config ─► RunResources ─► Backend ─► policy ─► trainer (recipe)
              recipe, envs,      └─► engine, player ─► LocalRunner
              tasks, pool

`Components` picks the backend (`backend.py`) by the environment: a robot's or a language agent's. With
workers (`workers.mode`) the loop plays episodes elsewhere (`worker_groups.py`), and the engine of this
process is never built.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from stepwell import training
from stepwell.core import SamplingParams, Split, Task, Trajectory
from stepwell.envs.registry import find_env_type, read_options
from stepwell.runs.build.backend import Backend
from stepwell.runs.build.resources import RunResources, close_built

if TYPE_CHECKING:
    from stepwell.engines import ArrayEngine, EmbeddedEngine, ServedEngine
    from stepwell.policies import CausalLMPolicy
    from stepwell.policies.vla import VLAPolicy
    from stepwell.runs.build.language_backend import LanguageBackend
    from stepwell.runs.build.robot_backend import RobotBackend
    from stepwell.runs.build.runner import LocalRunner
    from stepwell.training.rank_launch import RankLauncher

HELD_OUT_SEED = 20_261_115
"""Held-out tasks are the same in every run, whatever its seed, so that runs can be compared."""


@dataclass(eq=False)
class Components(RunResources):
    """Everything that a run is made of; each component is built on first use."""

    rank_launcher: RankLauncher | None = None  # of ranks that are actors

    @cached_property
    def backend(self) -> Backend:
        """The backend of a robot or of a language agent, depending on the environment."""
        if self.has_env and find_env_type(self.config.env.name).is_robot:
            from stepwell.runs.build.robot_backend import RobotBackend  # a plan imports only what it needs

            return RobotBackend(self)
        from stepwell.runs.build.language_backend import LanguageBackend

        return LanguageBackend(self)

    @property
    def is_robot(self) -> bool:
        return self.backend.is_robot

    @property
    def language(self) -> LanguageBackend:
        """The backend of a run that is known to be a language agent's."""
        assert not self.is_robot
        return cast("LanguageBackend", self.backend)

    @property
    def robot(self) -> RobotBackend:
        """The backend of a run that is known to be a robot's."""
        assert self.is_robot
        return cast("RobotBackend", self.backend)

    @property
    def policy(self) -> CausalLMPolicy | VLAPolicy:
        return self.backend.policy

    @property
    def engine(self) -> EmbeddedEngine | ServedEngine | ArrayEngine:
        return self.backend.engine

    @cached_property
    def runner(self) -> LocalRunner:
        """Plays episodes in this process."""
        from stepwell.runs.build.runner import LocalRunner  # a plan imports only what it needs

        return LocalRunner(self.engine, self.backend.make_rollout())

    @cached_property
    def trainer(self) -> training.Trainer:
        return training.Trainer(
            self.policy,
            self.recipe,
            self.config.train,
            horizon=self.backend.horizon,
            value_clip=self.config.recipe.value_clip,
            devices=self.config.workers.trainers.devices,
            launcher=self._find_launcher(),
            on_dead_rank=self.config.workers.on_dead_rank,
        )

    def _find_launcher(self) -> RankLauncher | None:
        """The launcher of ranks that Ray, torchrun or a similar program starts; None: child processes."""
        if self.rank_launcher is not None:
            return self.rank_launcher
        from stepwell.training.rank_join import JoinLauncher, Rendezvous  # imports torch

        meeting = Rendezvous.read_environment(os.environ)
        if meeting is None:
            return None
        return JoinLauncher(meeting, meeting.choose_device(self.config.policy.device))

    def prepare(self, *, plays_here: bool = True) -> None:
        """Build the trainer, and the runner if this process plays episodes; refuse what would fail later."""
        _ = self.trainer
        if plays_here:
            _ = self.runner
        if self.has_env:
            self.check_first_observation()

    def check_first_observation(self, task: Task | None = None) -> Any:
        """The first observation of a task, by default one to train on; refused if unusable for the policy."""
        if task is None:
            (task,) = self.tasks(Split.TRAIN, 1, self.config.seed)
        for _ in range(self.config.train.max_env_retries + 1):
            (turn,) = self.envs.reset([task])
            if turn.error is None:
                self.backend.check_observation(turn.observation)
                return turn.observation
        assert turn.error is not None
        raise turn.error

    def check_unopened(self) -> str | None:
        """What is known of an environment that takes seconds to open; None: it opens quickly.

        Refused if what it needs to open is missing.
        """
        name = self.config.env.name
        check = getattr(find_env_type(name), "check_unopened", None)  # robots have no such check
        return (
            None if check is None else cast("str | None", check(read_options(name, self.config.env.options)))
        )

    def sampling_params(self, temperature: float) -> SamplingParams:
        """The parameters of a request for one action."""
        return self.backend.sampling_params(temperature)

    def list_held_out_tasks(self, count: int | None = None) -> list[Task]:
        """The held-out tasks of a run: the same whatever its seed."""
        return self.tasks(Split.HELD_OUT, count or self.config.eval.num_tasks, HELD_OUT_SEED)

    def play_demonstrations(
        self, num_demos: int, noise: float, seed: int, times: int = 1
    ) -> list[Trajectory]:
        """Episodes of the oracle on `num_demos` training tasks, `times` on each.

        A language agent's tasks are repeated where there are fewer of them than demonstrations.
        """
        tasks = self.backend.repeat_tasks(self.tasks(Split.TRAIN, num_demos, seed), num_demos)
        return self.backend.demonstrate(tasks * times, noise, seed)

    def close(self) -> None:
        """Stop whatever was started: rollout, engine, trainer, environments, pools."""
        close_built(self, "runner", "backend", "trainer", "envs", "pool", "stored_pool")
