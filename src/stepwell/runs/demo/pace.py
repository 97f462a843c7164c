"""How long the demo will take on this machine: each kind of work is done once and timed.

    warm start    the demonstrations, and updates of imitation × as many as it usually takes (TYPICAL_WARM)
    training      a rollout and an update                      × train.num_updates
    evaluation    a rollout of held-out tasks                  × before, at intervals, after

The measurement uses its own weights, which are thrown away, so the run itself is the same with and without
it. Those weights have hardly learnt: every reply and every episode is as long as it may be. An agent that
knows the game is nearer to the demonstrations, so what was timed is scaled by the tokens of a demonstrated
episode over those of a played one. The result is an estimate: the length of the warm start is assumed too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stepwell.config.run import RunConfig
from stepwell.core import Split, TokenState, Trajectory
from stepwell.policies.numerics import set_numerics
from stepwell.rollout import Job
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.evaluate import evaluate
from stepwell.training import count_batches, imitate

NUM_WARM = 4
TYPICAL_WARM = 1 / 4
"""Assumed: the share of a warm start's updates after which it ends by `warm_start.stop_at`. The demo's ends
after 70 of 300 with seed 0."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one update of imitation, one update of training, one evaluation, one demonstration."""

    imitation_s: float
    update_s: float
    eval_s: float
    demo_s: float = 0.0

    def estimate_s(self, config: RunConfig) -> float:
        """Seconds that a run of these settings takes."""
        warm, train, every = config.warm_start, config.train, config.eval.every
        num_warm = count_batches(warm, warm.num_demos) * (1.0 if warm.stop_at is None else TYPICAL_WARM)
        num_checks = 0.0 if warm.stop_at is None else num_warm / warm.check_every
        num_evals = 1 + (-(-train.num_updates // every) if every else 1) if config.eval.num_tasks else 0
        evals_s = (num_evals + num_checks / 2) * self.eval_s  # a check plays half as many tasks
        warm_s = warm.num_demos * self.demo_s + num_warm * self.imitation_s
        return warm_s + train.num_updates * self.update_s + evals_s


def measure_pace(config: RunConfig) -> Pace:
    """Do each kind of work once, on throw-away weights. Takes a few seconds."""
    set_numerics(config.num_threads)
    with torch.random.fork_rng():
        return _measure_work(config)


def _measure_work(config: RunConfig) -> Pace:
    components, train = Components(config), config.train
    try:
        warm = config.warm_start
        count = min(warm.num_demos, NUM_WARM * warm.batch_size)
        began = time.perf_counter()
        shown = components.play_demonstrations(count, warm.noise, config.seed, warm.demos_per_task)
        demo_s = (time.perf_counter() - began) / count
        short = warm.model_copy(update={"epochs": 1, "max_updates": NUM_WARM})
        updates = imitate(components.policy, shown, short, config.seed, recipe=components.recipe)
        next(updates)  # the first one also warms up
        imitation_s = _time_work(lambda: list(updates)) / max(count_batches(short, len(shown)) - 1, 1)
        components.engine.load_weights(1, components.policy.model_weights())
        tasks = components.tasks(Split.TRAIN, train.tasks_per_update, config.seed)
        jobs = [Job(task, task.id, i) for task in tasks for i in range(train.group_size)]
        played = components.runner.rollout.run(jobs, components.sampling_params(config.sampling.temperature))
        rollout_s = _time_work(
            lambda: components.runner.rollout.run(
                jobs, components.sampling_params(config.sampling.temperature)
            )
        )
        update_s = _time_work(lambda: components.trainer.update(played.trajectories))
        held_out = components.list_held_out_tasks()
        eval_s = _time_work(lambda: evaluate(components, held_out, temperature=config.eval.temperature))
    finally:
        components.close()
    share = count_tokens(shown) / count_tokens(played.trajectories)
    return Pace(imitation_s, (rollout_s + update_s) * share, eval_s * share, demo_s)


def count_tokens(trajectories: Sequence[Trajectory]) -> float:
    """Mean tokens of an episode: those of every prompt and every action."""
    count = 0
    for step in (step for trajectory in trajectories for step in trajectory.steps):
        assert isinstance(step.state, TokenState), "the demo's agent speaks"
        count += step.state.prompt_ids.size + step.num_units
    return count / len(trajectories)


def _time_work(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
