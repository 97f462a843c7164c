"""Evaluation of an outside model behind an OpenAI-compatible chat API, on the same tasks as our models.

    settings, endpoint ─► prepare (does the API answer, and what does it take?)
                       ─► held-out tasks ─► ChatRollout ─► pool, one trajectory at a time ─► report

Tasks, seeds, agent, rewards and figures are those of `evaluate.py`. However it ends, finished episodes are
kept and reported. `resume` plays what is missing and never asks again for what is stored.

Invariants
* Figures count tasks all of whose attempts ended. A task with an attempt that failed for reasons of the
  system, after every retry, is left out; the report says how many were.
* The API key is read from the environment when calls are made, and is written nowhere.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.config.chat_api import ChatApiConfig
from stepwell.config.outputs import RunPoolConfig
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, EngineError, InfraError, Observation, Status, Task, Trajectory
from stepwell.core.protocols import SamplingParams
from stepwell.pool import Filter, PoolImageStore
from stepwell.rollout import Job
from stepwell.rollout.chat_model import ChatModel
from stepwell.rollout.chat_player import ChatPlayer
from stepwell.rollout.chat_rollout import ChatRollout
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation import folders as eval_folders
from stepwell.runs.evaluation.folders import Evaluation
from stepwell.runs.evaluation.held_out import eval_jobs
from stepwell.runs.evaluation.result import EvalReport, EvalResult

UNTRAINABLE = "untrainable"
OnDone = Callable[[Trajectory, ChatModel], None]


class EndpointEvaluation:
    """One evaluation in `folder`, from the first request to the report."""

    def __init__(
        self,
        config: RunConfig,
        endpoint: ChatApiConfig,
        folder: Path,
        *,
        command: str = "",
        on_start: Callable[[int, int], None] = lambda total, known: None,
        on_done: OnDone = lambda trajectory, model: None,
    ) -> None:
        self.config, self.endpoint, self.folder = _fit_config(config, endpoint), endpoint, folder
        self._is_fresh = eval_folders.is_empty(folder)
        self.components = Components(self.config, folder)
        self._command, self._on_start, self._on_done = command, on_start, on_done
        self._done: dict[int, Trajectory] = {}
        self._num_failed_tries = 0
        self._notes: list[str] = []
        self._spent: dict[str, Any] = {}

    def run(self, *, resume: bool = False) -> EvalReport:
        """Play the missing episodes; returns the report, or raises after writing it."""
        try:
            observation = self._read_first_observation()
            tasks = self.components.list_held_out_tasks(self.config.eval.num_tasks)
            evaluation = self._start_folder(tasks, resume)
            began = time.perf_counter()
            problem: BaseException | None = None
            try:
                asyncio.run(self._play_missing(tasks, observation))
            except (KeyboardInterrupt, InfraError) as error:
                problem = error
            return self._finish_report(tasks, evaluation, time.perf_counter() - began, problem)
        finally:
            self.components.close()
            if not self._done and self._is_fresh:  # nothing was stored: the folder name stays free
                shutil.rmtree(self.folder, ignore_errors=True)

    def _read_first_observation(self) -> Observation:
        """The first observation; refused if a chat model cannot act in the environment."""
        if self.components.is_robot:
            raise ConfigError(f"{self.config.env.name} is a robot environment; a chat model cannot act in it")
        if self.config.own_agent.function is not None or self.config.own_agent.tasks is not None:
            raise ConfigError(
                "own_agent: with --endpoint the built-in agent plays; for an agent of your own serve "
                "the model with `stepwell serve gateway --upstream`"
            )
        tasks = self.components.list_held_out_tasks(1)
        for _ in range(self.config.train.max_env_retries + 1):
            (turn,) = self.components.envs.reset(tasks)
            if turn.error is None:
                assert isinstance(turn.observation, Observation)
                return turn.observation
        assert turn.error is not None
        raise turn.error

    def _start_folder(self, tasks: Sequence[Task], resume: bool) -> Evaluation:
        wanted = self.config.eval
        evaluation = eval_folders.start_evaluation(
            self.components,
            self.endpoint.model,
            [task.id for task in tasks],
            wanted.temperature,
            wanted.samples_per_task,
            self.config.seed,
        )
        evaluation = replace(evaluation, endpoint=self.endpoint.model_dump(mode="json"))
        if resume:
            self._find_played(tasks)
        eval_folders.start_folder(self.folder, self.config, evaluation)
        return evaluation

    def _find_played(self, tasks: Sequence[Task]) -> None:
        """Find the stored episodes of each job: task and seed identify it."""
        jobs = eval_jobs(tasks, self.config.eval.samples_per_task, self.config.seed)
        numbers = {(job.task.id, job.seed): number for number, job in enumerate(jobs)}
        for trajectory in self.components.pool.trajectories(Filter(channel="eval")):
            number = numbers.get((trajectory.task.id, trajectory.info.get("seed")))  # type: ignore[arg-type]
            if number is not None and trajectory.status is not Status.INFRA_ERROR:
                self._done[number] = trajectory

    async def _play_missing(self, tasks: Sequence[Task], observation: Observation) -> None:
        wanted = self.config.eval
        jobs = eval_jobs(tasks, wanted.samples_per_task, self.config.seed)
        missing = [number for number in range(len(jobs)) if number not in self._done]
        self._on_start(len(jobs), len(jobs) - len(missing))
        if not missing:
            return
        image_store = PoolImageStore(self.components.pool)
        async with ChatModel(self.endpoint, image_store) as model:
            try:
                await self._ask_all([jobs[n] for n in missing], missing, model, image_store, observation)
            finally:
                self._notes, self._spent = model.notes, model.counts.summarize(self.endpoint)

    async def _ask_all(
        self,
        jobs: Sequence[Job],
        numbers: Sequence[int],
        model: ChatModel,
        image_store: PoolImageStore,
        observation: Observation,
    ) -> None:
        components, params = self.components, self._make_params()
        tools = components.language.agent.tools
        takes_tools = await model.prepare(replace(params, seed=0), tools, with_image=bool(observation.images))
        player = ChatPlayer(
            components.language.agent,
            image_store,
            api_tools=takes_tools,
            parts=components.recipe.reward_parts or ("task",),
            optional_parts=components.recipe.optional_reward_parts,
            weights=self.config.rewards,
            reward_scale=self.config.rewards.scale,
            judged_later=components.backend.batch_judge is not None,
        )

        def finish_episode(index: int, trajectory: Trajectory) -> None:
            self._store_episode(numbers[index], trajectory)
            self._on_done(trajectory, model)

        rollout = ChatRollout(components.envs, player, model)
        await rollout.run(jobs, params, retries=self.config.train.max_env_retries, on_done=finish_episode)

    def _make_params(self) -> SamplingParams:
        sampling, temperature = self.config.sampling, self.config.eval.temperature
        top_p = sampling.top_p if temperature > 0 else 1.0
        return SamplingParams(max_tokens=sampling.max_tokens, temperature=temperature, top_p=top_p)

    def _store_episode(self, number: int, trajectory: Trajectory) -> None:
        """Store an episode immediately, so that paid calls are not lost."""
        size = self.config.eval.samples_per_task
        self.components.pool.add([trajectory], channel="eval", group_sizes=size, tags=(UNTRAINABLE,))
        if trajectory.status is Status.INFRA_ERROR:
            self._num_failed_tries += 1
        else:
            self._done[number] = trajectory

    def _finish_report(
        self, tasks: Sequence[Task], evaluation: Evaluation, wall_s: float, problem: BaseException | None
    ) -> EvalReport:
        size = self.config.eval.samples_per_task
        whole = [i for i in range(len(tasks)) if all(i * size + k in self._done for k in range(size))]
        if not whole:
            raise problem or EngineError(
                f"no task was finished: all {self._num_failed_tries} attempts failed with system errors"
            )
        trajectories = [self._done[i * size + k] for i in whole for k in range(size)]
        result = EvalResult(trajectories, size, self.config.eval.temperature)
        more = {**self._spent, "failed_tries": self._num_failed_tries}
        report = EvalReport(self.endpoint.model, self.config.env.name, result, self.config.seed, more)
        report.notes += self._notes
        if len(whole) < len(tasks):
            report.notes.append(
                f"{len(tasks) - len(whole)} of {len(tasks)} tasks are not finished and not counted; continue "
                f"with `stepwell eval --resume {self.folder}`"
            )
        status = "finished" if len(whole) == len(tasks) else "interrupted"
        evaluation = replace(evaluation, status=status)
        eval_folders.finish_folder(self.folder, self.components, evaluation, report, wall_s, self._command)
        if isinstance(problem, InfraError):
            raise EngineError(
                f"{problem}; {len(whole)} of {len(tasks)} tasks were finished, see {self.folder}: continue "
                f"with `stepwell eval --resume {self.folder}`"
            ) from problem
        if problem is not None:
            raise problem
        return report


def _fit_config(config: RunConfig, endpoint: ChatApiConfig) -> RunConfig:
    """Settings with one environment per concurrent episode, a pool of its own, and the model's name."""
    if config.eval.num_tasks < 1:
        raise ConfigError("eval.num_tasks: must be a whole number, at least 1, got 0")
    size = endpoint.max_concurrent
    engine = config.engine.model_copy(update={"max_batch_size": size, "num_slots": size})
    policy = config.policy.model_copy(update={"model": endpoint.model})
    return config.model_copy(update={"engine": engine, "policy": policy, "pool": RunPoolConfig()})
