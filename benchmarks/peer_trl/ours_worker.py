"""Ours: recipe `grpo` with the parts that `stepwell train` uses.

python ours_worker.py JOB.json
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from job import Clock, Job

from stepwell.config.run import RunConfig
from stepwell.core import Status
from stepwell.engines import fingerprint_of
from stepwell.rollout import Job as Episode
from stepwell.runs.build.components import Components


def run_config(job: Job, model: str) -> RunConfig:
    """The job as settings of a run."""
    size = job.num_trajectories
    return RunConfig.model_validate(
        {
            "seed": job.seed,
            "env": {"name": "frozenlake", "options": job.options},
            "policy": {"model": model},
            "engine": {"max_batch_size": size, "num_slots": size, "max_length": 600, "prefill_tokens": 32768},
            "sampling": {"max_tokens": job.max_tokens},
            "recipe": {
                "name": "grpo",
                "kl_coef": 0.0,
                "credit": {"eps": job.std_eps},
                "reward_parts": ("outcome",),
            },
            "train": {
                "num_updates": job.num_updates,
                "tasks_per_update": job.prompts_per_update,
                "group_size": job.group_size,
                "optimizer": {
                    "learning_rate": job.learning_rate,
                    "beta2": job.beta2,
                    "grad_clip": job.grad_clip,
                },
            },
        }
    )


def main(job: Job) -> None:
    torch.set_num_threads(job.num_threads)
    components = Components(run_config(job, job.model))
    boards, clock = job.boards(), Clock([], {"sampling": 0.0, "learning": 0.0, "publishing": 0.0}, [])
    rng = np.random.default_rng(job.seed)
    size = job.prompts_per_update
    components.trainer.freeze_reference()
    components.engine.forget()
    started = time.perf_counter()
    for update in range(job.num_updates):
        begun = time.perf_counter()
        episodes = [
            Episode(board, f"{update}-{i}", int(seed))
            for i, board in enumerate(boards[update * size : (update + 1) * size])
            for seed in rng.integers(2**62, size=job.group_size)
        ]
        components.engine.forget()
        rolled = components.runner.rollout.run(episodes, components.sampling_params(temperature=1.0))
        played = time.perf_counter()
        components.trainer.update(rolled.trajectories)
        learnt = time.perf_counter()
        weights = components.policy.model_weights()
        dtype = components.engine.model.dtype
        components.engine.load_weights(update + 1, weights, fingerprint=fingerprint_of(weights, dtype))
        now = time.perf_counter()
        for name, seconds in zip(clock.parts, (played - begun, learnt - played, now - learnt), strict=True):
            clock.parts[name] += seconds
        clock.ends.append(now - started)
        clock.num_tokens += sum(step.num_units for t in rolled.trajectories for step in t.steps)
        clock.successes.append(float(np.mean([t.status is Status.SUCCESS for t in rolled.trajectories])))
    components.policy.save_pretrained(f"{job.out}/model")
    components.close()
    clock.write(job)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
