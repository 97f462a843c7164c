"""Success on held-out tasks, played with the weights that a run has now.

Tasks and seeds are the same every time, so that two evaluations differ by the policy alone.
`evaluate.py` evaluates what a run has stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.core import EnvError, Task
from stepwell.rollout import Job
from stepwell.runs.build.components import HELD_OUT_SEED, Components
from stepwell.runs.build.runner import EpisodeRunner
from stepwell.runs.evaluation.result import EvalResult


def evaluate(
    components: Components,
    tasks: Sequence[Task],
    *,
    temperature: float,
    samples_per_task: int = 1,
    seed: int = 0,
    runner: EpisodeRunner | None = None,
) -> EvalResult:
    """Play held-out tasks with the present weights of `runner` (default: the engine of this process)."""
    runner = runner or components.runner
    jobs = eval_jobs(tasks, samples_per_task, seed)
    runner.forget()
    params, retries = components.sampling_params(temperature), components.config.train.max_env_retries
    rolled = runner.run(jobs, params, retries=retries)
    if rolled.failures:
        raise EnvError(
            f"{len(rolled.failures)} of {len(jobs)} evaluation episodes failed with system errors, "
            f"after every retry; the first: {rolled.failures[0].error}"
        )
    return EvalResult(rolled.trajectories, samples_per_task, temperature)


def eval_jobs(tasks: Sequence[Task], samples_per_task: int, seed: int) -> list[Job]:
    """The episodes of an evaluation, task by task: the same for every player."""
    seeds = np.random.default_rng([HELD_OUT_SEED, seed]).integers(2**62, size=(len(tasks), samples_per_task))
    return [
        Job(task, task.id, int(seeds[i, k]), channel="eval")
        for i, task in enumerate(tasks)
        for k in range(samples_per_task)
    ]
