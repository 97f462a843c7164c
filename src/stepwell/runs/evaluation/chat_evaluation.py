"""Evaluation of an outside model: any OpenAI-compatible chat API, on the same tasks as our own models.

    settings, endpoint ─► prepare (does the API answer, and what does it take?)
                       ─► held-out tasks ─► ChatRollout ─► pool, one trajectory at a time ─► report

Tasks, seeds of worlds, agent, rewards and figures are those of `evaluation.py`. However it ends, what was
played is kept and reported; `resume` plays what is missing, and never asks again for what is there.

Invariants
* Figures are of tasks all of whose attempts came to an end. Attempts that failed for the system's reasons
  after every retry leave their task out; how many did is always told.
* The API key is read from the environment where calls are made, and is written nowhere.
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
from stepwell.config.run import RunConfig, RunPoolConfig
from stepwell.core import ConfigError, EngineError, InfraError, Observation, Status, Task, Trajectory
from stepwell.core.protocols import SamplingParams
from stepwell.pool import Filter, PoolImageStore
from stepwell.rollout import Job
from stepwell.rollout.chat_model import ChatModel
from stepwell.rollout.chat_player import ChatPlayer
from stepwell.rollout.chat_rollout import ChatRollout
from stepwell.runs.build.components import Parts
from stepwell.runs.evaluation import folders as eval_folders
from stepwell.runs.evaluation.evaluate import EvalReport, EvalResult, eval_jobs, held_out_tasks
from stepwell.runs.evaluation.folders import Evaluation

UNTRAINABLE = "untrainable"
OnDone = Callable[[Trajectory, ChatModel], None]


class EndpointEvaluation:
    """One evaluation in `folder`, from the first question to the report."""

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
        self.config, self.endpoint, self.folder = _fitted(config, endpoint), endpoint, folder
        self._is_fresh = eval_folders.is_free(folder)
        self.parts = Parts(self.config, folder)
        self._command, self._on_start, self._on_done = command, on_start, on_done
        self._done: dict[int, Trajectory] = {}
        self._num_failed_tries = 0
        self._notes: list[str] = []
        self._spent: dict[str, Any] = {}

    def run(self, *, resume: bool = False) -> EvalReport:
        """Play what is not there yet; returns the report, or raises after it was written."""
        try:
            observation = self._first_look()
            tasks = held_out_tasks(self.parts, self.config.eval.num_tasks)
            told = self._begin(tasks, resume)
            began = time.perf_counter()
            problem: BaseException | None = None
            try:
                asyncio.run(self._play(tasks, observation))
            except (KeyboardInterrupt, InfraError) as error:
                problem = error
            return self._end(tasks, told, time.perf_counter() - began, problem)
        finally:
            self.parts.close()
            if not self._done and self._is_fresh:  # nothing has come of it: the name stays free
                shutil.rmtree(self.folder, ignore_errors=True)

    def _first_look(self) -> Observation:
        """What the world shows; refused where no chat model can play in it."""
        if self.parts.is_robot:
            raise ConfigError(f"{self.config.env.name} is a robot's world: a chat model cannot act in it")
        if self.config.own_agent.function is not None or self.config.own_agent.tasks is not None:
            raise ConfigError(
                "own_agent: --endpoint is played by the built-in agent; for an agent of your own serve "
                "the model by `stepwell serve gateway --upstream`"
            )
        tasks = held_out_tasks(self.parts, 1)
        for _ in range(self.config.train.max_env_retries + 1):
            (turn,) = self.parts.envs.reset(tasks)
            if turn.error is None:
                assert isinstance(turn.observation, Observation)
                return turn.observation
        assert turn.error is not None
        raise turn.error

    def _begin(self, tasks: Sequence[Task], resume: bool) -> Evaluation:
        wanted = self.config.eval
        told = eval_folders.evaluation_of(
            self.parts,
            self.endpoint.model,
            [task.id for task in tasks],
            wanted.temperature,
            wanted.samples_per_task,
            self.config.seed,
        )
        told = replace(told, endpoint=self.endpoint.model_dump(mode="json"))
        if resume:
            self._find_played(tasks)
        eval_folders.begin_folder(self.folder, self.config, told)
        return told

    def _find_played(self, tasks: Sequence[Task]) -> None:
        """Take up what an earlier sitting played: a job is known by its task and its seed."""
        jobs = eval_jobs(tasks, self.config.eval.samples_per_task, self.config.seed)
        numbers = {(job.task.id, job.seed): number for number, job in enumerate(jobs)}
        for trajectory in self.parts.pool.trajectories(Filter(channel="eval")):
            number = numbers.get((trajectory.task.id, trajectory.info.get("seed")))  # type: ignore[arg-type]
            if number is not None and trajectory.status is not Status.INFRA_ERROR:
                self._done[number] = trajectory

    async def _play(self, tasks: Sequence[Task], observation: Observation) -> None:
        wanted = self.config.eval
        jobs = eval_jobs(tasks, wanted.samples_per_task, self.config.seed)
        missing = [number for number in range(len(jobs)) if number not in self._done]
        self._on_start(len(jobs), len(jobs) - len(missing))
        if not missing:
            return
        pictures = PoolImageStore(self.parts.pool)
        async with ChatModel(self.endpoint, pictures) as model:
            try:
                await self._ask_all([jobs[n] for n in missing], missing, model, pictures, observation)
            finally:
                self._notes, self._spent = model.notes, model.counts.summarize(self.endpoint)

    async def _ask_all(
        self,
        jobs: Sequence[Job],
        numbers: Sequence[int],
        model: ChatModel,
        pictures: PoolImageStore,
        observation: Observation,
    ) -> None:
        parts, params = self.parts, self._params()
        tools = parts.agent.tools
        takes_tools = await model.prepare(replace(params, seed=0), tools, with_image=bool(observation.images))
        player = ChatPlayer(
            parts.agent,
            pictures,
            api_tools=takes_tools,
            parts=parts.recipe.reward_parts or ("task",),
            optional_parts=parts.recipe.optional_reward_parts,
            weights=self.config.rewards,
            reward_scale=self.config.rewards.scale,
            judged_later=parts.batch_judge is not None,
        )

        def done(index: int, trajectory: Trajectory) -> None:
            self._keep(numbers[index], trajectory)
            self._on_done(trajectory, model)

        rollout = ChatRollout(parts.envs, player, model)
        await rollout.run(jobs, params, retries=self.config.train.max_env_retries, on_done=done)

    def _params(self) -> SamplingParams:
        sampling, temperature = self.config.sampling, self.config.eval.temperature
        top_p = sampling.top_p if temperature > 0 else 1.0
        return SamplingParams(max_tokens=sampling.max_tokens, temperature=temperature, top_p=top_p)

    def _keep(self, number: int, trajectory: Trajectory) -> None:
        """Into the pool at once: what is paid for is not lost."""
        size = self.config.eval.samples_per_task
        self.parts.pool.add([trajectory], channel="eval", group_sizes=size, tags=(UNTRAINABLE,))
        if trajectory.status is Status.INFRA_ERROR:
            self._num_failed_tries += 1
        else:
            self._done[number] = trajectory

    def _end(
        self, tasks: Sequence[Task], told: Evaluation, wall_s: float, problem: BaseException | None
    ) -> EvalReport:
        size = self.config.eval.samples_per_task
        whole = [i for i in range(len(tasks)) if all(i * size + k in self._done for k in range(size))]
        if not whole:
            raise problem or EngineError(
                f"no task was finished: all {self._num_failed_tries} tries failed for the system's reasons"
            )
        trajectories = [self._done[i * size + k] for i in whole for k in range(size)]
        result = EvalResult(trajectories, size, self.config.eval.temperature)
        more = {**self._spent, "failed_tries": self._num_failed_tries}
        report = EvalReport(self.endpoint.model, self.config.env.name, result, self.config.seed, more)
        report.notes += self._notes
        if len(whole) < len(tasks):
            report.notes.append(
                f"{len(tasks) - len(whole)} of {len(tasks)} tasks are not finished and not counted; go on by "
                f"`stepwell eval --resume {self.folder}`"
            )
        status = "finished" if len(whole) == len(tasks) else "interrupted"
        told = replace(told, status=status)
        eval_folders.finish_folder(self.folder, self.parts, told, report, wall_s, self._command)
        if isinstance(problem, InfraError):
            raise EngineError(
                f"{problem}; {len(whole)} of {len(tasks)} tasks were finished, see {self.folder}: go on "
                f"by `stepwell eval --resume {self.folder}`"
            ) from problem
        if problem is not None:
            raise problem
        return report


def evaluate_endpoint(
    config: RunConfig, endpoint: ChatApiConfig, folder: Path | None = None, **options: Any
) -> EvalReport:
    """Evaluate the model behind an API; its folder is made under `config.folder` where none is given."""
    folder = folder or eval_folders.new_eval_folder(config, endpoint.model)
    return EndpointEvaluation(config, endpoint, folder, **options).run()


def _fitted(config: RunConfig, endpoint: ChatApiConfig) -> RunConfig:
    """As many worlds as episodes at once, a pool of its own, and the model's name where a model is named."""
    if config.eval.num_tasks < 1:
        raise ConfigError("eval.num_tasks: must be a whole number, at least 1, got 0")
    size = endpoint.max_concurrent
    engine = config.engine.model_copy(update={"max_batch_size": size, "num_slots": size})
    policy = config.policy.model_copy(update={"model": endpoint.model})
    return config.model_copy(update={"engine": engine, "policy": policy, "pool": RunPoolConfig()})
