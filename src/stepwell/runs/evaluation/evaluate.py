"""Evaluation: success on held-out tasks, with its uncertainty.

The same tasks and the same seeds every time, so that two evaluations differ by the policy alone.
A success rate comes with Wilson's 95 % interval. Where each task was tried more than once, attempts
on one task are not independent: they count as the number of independent ones that would leave the
same uncertainty, at least one per task. pass@k is the unbiased estimate: the chance that one of k
attempts, drawn from those made, succeeds.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig, RunPoolConfig
from stepwell.core import ConfigError, EnvError, ModelError, Status, Step, Task, Trajectory
from stepwell.policies.numerics import set_numerics
from stepwell.rollout import Job
from stepwell.rollout.usage import measure_reply_length, measure_tool_use
from stepwell.runs.build.components import HELD_OUT_SEED, Parts, held_out_tasks
from stepwell.runs.evaluation import folders as eval_folders
from stepwell.runs.loop.agent_failures import count_failures, describe_failures, first_errors
from stepwell.training.checkpoint import BEST, Checkpoint, latest_checkpoint, require_whole

_Z = 1.959964


@dataclass(eq=False)
class EvalResult:
    """Episodes on held-out tasks: `samples_per_task` of each, task by task."""

    trajectories: list[Trajectory]
    samples_per_task: int
    temperature: float

    @property
    def outcomes(self) -> np.ndarray:
        """[task, sample] bool."""
        flat = [t.status is Status.SUCCESS for t in self.trajectories]
        return np.array(flat, dtype=bool).reshape(-1, self.samples_per_task)

    @property
    def num_tasks(self) -> int:
        return len(self.trajectories) // self.samples_per_task

    @property
    def success(self) -> float:
        return float(self.outcomes.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, over tasks."""
        count = self._num_independent()
        return wilson(self.success * count, count)

    def _num_independent(self) -> float:
        """How many independent attempts would leave the uncertainty that these leave."""
        num_tasks, share = self.num_tasks, self.success
        if self.samples_per_task == 1 or num_tasks == 1 or share in (0.0, 1.0):
            return num_tasks
        variance = float(self.outcomes.mean(axis=1).var(ddof=1)) / num_tasks
        most = num_tasks * self.samples_per_task
        return most if variance == 0 else min(max(share * (1 - share) / variance, num_tasks), most)

    def pass_at(self, k: int) -> float:
        """Chance that one of k attempts succeeds."""
        n = self.samples_per_task
        wins = self.outcomes.sum(axis=1)
        return float(np.mean([1.0 - math.comb(n - int(c), k) / math.comb(n, k) for c in wins]))

    def values(self) -> dict[str, float]:
        """The figures for `metrics.jsonl`."""
        low, high = self.interval
        steps = [step for t in self.trajectories for step in t.steps]
        powers = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= self.samples_per_task]
        return {
            "success": self.success,
            "low": low,
            "high": high,
            **{f"pass@{k}": self.pass_at(k) for k in powers},
            "reward": float(np.mean([t.total_reward for t in self.trajectories])),
            "turns": len(steps) / len(self.trajectories),
            **format_share(steps),
            **measure_reply_length(self.trajectories),
            **measure_tool_use(self.trajectories),
            **count_failures(self.trajectories),
        }


def format_share(steps: Sequence[Step]) -> dict[str, float]:
    """The share of replies in exactly the asked form, where steps are replies (a robot's are not)."""
    if steps and not any("strict" in step.info for step in steps):
        return {}
    return {"format_share": sum(bool(step.info.get("strict")) for step in steps) / max(len(steps), 1)}


def wilson(wins: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(x, 3) for x in wilson(8, 10)]
    [0.49, 0.943]
    """
    if count == 0:
        return 0.0, 1.0
    share, z2 = wins / count, _Z * _Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return (0.0 if wins == 0 else centre - half), (1.0 if wins == count else centre + half)


def evaluate(
    parts: Parts, tasks: Sequence[Task], *, temperature: float, samples_per_task: int = 1, seed: int = 0
) -> EvalResult:
    """Play held-out tasks with the engine's present weights."""
    jobs = eval_jobs(tasks, samples_per_task, seed)
    parts.engine.forget()
    rolled = parts.rollout.run(jobs, parts.params(temperature), retries=parts.config.train.max_env_retries)
    if rolled.failures:
        raise EnvError(
            f"{len(rolled.failures)} of {len(jobs)} evaluation episodes failed for the system's reasons, "
            f"also when tried again; the first: {rolled.failures[0].error}"
        )
    return EvalResult(rolled.trajectories, samples_per_task, temperature)


def eval_jobs(tasks: Sequence[Task], samples_per_task: int, seed: int) -> list[Job]:
    """The episodes of an evaluation, task by task: the same whoever plays them."""
    seeds = np.random.default_rng([HELD_OUT_SEED, seed]).integers(2**62, size=(len(tasks), samples_per_task))
    return [
        Job(task, task.id, int(seeds[i, k]), channel="eval")
        for i, task in enumerate(tasks)
        for k in range(samples_per_task)
    ]


@dataclass(eq=False)
class EvalReport:
    """An evaluation as a person reads it. `more` are figures besides those of the episodes, by name.

    `checkpoint` says which one of a run was taken, and why.
    """

    model: str
    env: str
    result: EvalResult
    seed: int
    more: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checkpoint: str = ""

    def to_json(self) -> str:
        """All figures."""
        content = {
            "model": self.model,
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
            "env": self.env,
            "num_tasks": self.result.num_tasks,
            "samples_per_task": self.result.samples_per_task,
            "temperature": self.result.temperature,
            "seed": self.seed,
            **self.result.values(),
            **self.more,
            **({"notes": self.notes} if self.notes else {}),
        }
        return json.dumps(content, indent=2)

    def table(self) -> str:
        """One figure per line."""
        result = self.result
        low, high = result.interval
        decoding = "greedy" if result.temperature == 0 else f"temperature {result.temperature:g}"
        lines = [
            f"model      {self.model}",
            *([f"checkpoint {self.checkpoint}"] if self.checkpoint else []),
            f"world      {self.env}, {result.num_tasks} held-out tasks, "
            f"{result.samples_per_task} attempt(s) each, {decoding}",
            f"success    {result.success:.3f}   (95 % interval {low:.3f} to {high:.3f})",
        ]
        lines += [f"{name:<10} {value}" for name, value in self.figures()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def figures(self) -> list[tuple[str, str]]:
        """All but success, as names and values for people."""
        values = {k: v for k, v in self.result.values().items() if k not in ("success", "low", "high")}
        shown = [(name, f"{value:.3f}") for name, value in values.items()]
        for name, value in self.more.items():
            if isinstance(value, int | float) and value:
                shown.append((name, f"{value:,}" if isinstance(value, int) else f"{value:.4f}"))
        return shown


def evaluate_run(
    run_or_model: Path | str,
    config: RunConfig | None = None,
    *,
    num_tasks: int | None = None,
    samples_per_task: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    folder: Path | None = None,
    command: str = "",
) -> EvalReport:
    """Evaluate a checkpoint of a run (`choose_checkpoint`), or any model in the environment of `config`.

    With `folder`, everything about it is kept there: figures, trajectories, a page with replays.
    """
    model, checkpoint = str(run_or_model), ""
    run = Path(model)
    if (run / "config.toml").exists():
        config = config or load_config(run / "config.toml")
        model, checkpoint = map(str, choose_checkpoint(run))
    elif config is None:
        config = RunConfig()
    if (config.eval.num_tasks if num_tasks is None else num_tasks) < 1:
        raise ConfigError("eval.num_tasks: must be a whole number, at least 1, got 0")
    config = config.model_copy(update={"policy": config.policy.model_copy(update={"model": model})})
    temperature = config.eval.temperature if temperature is None else temperature
    samples = samples_per_task or config.eval.samples_per_task
    is_fresh = folder is not None and eval_folders.is_free(folder)
    set_numerics(config.num_threads)
    parts = Parts(config if folder is None else _with_own_pool(config), folder)
    try:
        parts.check_prompt()
        tasks = held_out_tasks(parts, num_tasks)
        began = time.perf_counter()
        result = evaluate(parts, tasks, temperature=temperature, samples_per_task=samples, seed=seed)
        notes = _failure_notes(result)
        report = EvalReport(model, config.title, result, seed, checkpoint=checkpoint, notes=notes)
        if folder is not None:
            ids = [task.id for task in tasks]
            told = eval_folders.evaluation_of(parts, model, ids, temperature, samples, seed)
            eval_folders.begin_folder(folder, parts.config, told)
            parts.pool.add(result.trajectories, channel="eval", group_sizes=samples)
            told = replace(told, status="finished")
            eval_folders.finish_folder(folder, parts, told, report, time.perf_counter() - began, command)
    except BaseException:
        if folder is not None and is_fresh:  # nothing has come of it: the name stays free
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        parts.close()
    return report


def _failure_notes(result: EvalResult) -> list[str]:
    """What a user's own agent got wrong: episodes that are no success of the policy's."""
    told = describe_failures(count_failures(result.trajectories))
    if not told:
        return []
    errors = [f"{kind}: {error}" for kind, error in first_errors(result.trajectories).items()]
    return [f"of {len(result.trajectories)} episodes {told}; they count as failures", *errors]


def _with_own_pool(config: RunConfig) -> RunConfig:
    """An evaluation keeps its episodes in its own folder, wherever the run keeps its own."""
    return config.model_copy(update={"pool": RunPoolConfig()})


def choose_checkpoint(folder: Path) -> tuple[Path, str]:
    """The checkpoint that stands for a run, and why it does.

    It is the best of those that were evaluated. Where only the weights before training were, the best is not
    known, and it is the last.
    """
    best = folder / "checkpoints" / BEST
    if best.exists() and _update_of(best) > 0:
        require_whole(best)
        return best, _describe_best(best)
    last = latest_checkpoint(folder / "checkpoints", lambda text: None)
    if last is not None and (_is_unjudged(last) or not best.exists()):
        told = "no weights after training were evaluated" if best.exists() else "none was evaluated"
        return last.path, f"the last, of update {last.update}: {told}"
    if not best.exists():
        raise ModelError(f"{folder} has no whole checkpoint yet; let the run reach its first one")
    require_whole(best)
    return best, _describe_best(best)


def checkpoint_of(folder: Path) -> Path:
    """The checkpoint that stands for a run."""
    return choose_checkpoint(folder)[0]


def _is_unjudged(last: Checkpoint) -> bool:
    """Whether a run has trained since its only evaluation, the one before training."""
    state = last.loop.get("state", {})
    return last.update > 0 and state.get("evaluated_at", last.update) in (None, 0)


def _update_of(best: Path) -> int:
    try:
        return int(json.loads((best / "loop.json").read_text())["update"])
    except (OSError, ValueError, KeyError):  # `require_whole` says what is wrong with it
        return 1


def _describe_best(best: Path) -> str:
    loop = json.loads((best / "loop.json").read_text())
    values = loop.get("state", {}).get("last") or {}
    success = f", held-out success {values['success']:.2f}" if "success" in values else ""
    return f"the best of those that were evaluated, of update {loop['update']}{success}"
