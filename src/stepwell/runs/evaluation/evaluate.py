"""Evaluate a stored policy: the best checkpoint of a run, a named one, or any model.

`held_out.py` plays the episodes; a run calls it without this module.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from stepwell.config.loading import load_config
from stepwell.config.outputs import RunPoolConfig
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, ModelError
from stepwell.core.names import suggest_name
from stepwell.policies.numerics import set_numerics
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation import folders as eval_folders
from stepwell.runs.evaluation.held_out import evaluate
from stepwell.runs.evaluation.result import EvalReport, EvalResult
from stepwell.runs.loop.agent_failures import count_failures, describe_failures, find_first_errors
from stepwell.training.checkpoint import BEST, Checkpoint, find_latest_checkpoint, require_whole


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

    With `folder`, figures, trajectories and a page with replays are kept there.
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
    is_fresh = folder is not None and eval_folders.is_empty(folder)
    set_numerics(config.num_threads)
    components = Components(config if folder is None else _use_own_pool(config), folder)
    try:
        tasks = components.list_held_out_tasks(num_tasks)
        components.check_first_observation(tasks[0])  # there may be no task to train on
        began = time.perf_counter()
        result = evaluate(components, tasks, temperature=temperature, samples_per_task=samples, seed=seed)
        notes = _describe_agent_failures(result)
        report = EvalReport(model, config.title, result, seed, checkpoint=checkpoint, notes=notes)
        if folder is not None:
            ids = [task.id for task in tasks]
            evaluation = eval_folders.start_evaluation(components, model, ids, temperature, samples, seed)
            eval_folders.start_folder(folder, components.config, evaluation)
            components.pool.add(result.trajectories, channel="eval", group_sizes=samples)
            evaluation = replace(evaluation, status="finished")
            eval_folders.finish_folder(
                folder, components, evaluation, report, time.perf_counter() - began, command
            )
    except BaseException:
        if folder is not None and is_fresh:  # nothing was kept: the name stays free
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        components.close()
    return report


def _describe_agent_failures(result: EvalResult) -> list[str]:
    """Failures of a user's own agent: episodes that are not the policy's success."""
    failures = describe_failures(count_failures(result.trajectories))
    if not failures:
        return []
    errors = [f"{kind}: {error}" for kind, error in find_first_errors(result.trajectories).items()]
    return [f"of {len(result.trajectories)} episodes {failures}; they count as failures", *errors]


def _use_own_pool(config: RunConfig) -> RunConfig:
    """Keep the episodes of an evaluation in its own folder, whatever the run's pool is."""
    return config.model_copy(update={"pool": RunPoolConfig()})


def choose_checkpoint(folder: Path) -> tuple[Path, str]:
    """The checkpoint that represents a run, and why.

    It is the best of those that were evaluated. If only the weights before training were evaluated, the best
    is not known, and it is the last one.
    """
    best = folder / "checkpoints" / BEST
    if best.exists() and _read_update(best) > 0:
        require_whole(best)
        return best, _describe_best(best)
    last = find_latest_checkpoint(folder / "checkpoints", lambda text: None)
    if last is not None and (_is_unevaluated(last) or not best.exists()):
        reason = "no weights after training were evaluated" if best.exists() else "none was evaluated"
        return last.path, f"the last, of update {last.update}: {reason}"
    if not best.exists():
        raise ModelError(f"{folder} has no whole checkpoint yet; let the run reach its first one")
    require_whole(best)
    return best, _describe_best(best)


def find_checkpoint(folder: Path, name: str | None = None) -> Path:
    """The named checkpoint of a run, or the one that represents it."""
    if name is None:
        return choose_checkpoint(folder)[0]
    path = folder / "checkpoints" / name
    if not path.is_dir():
        known = sorted(item.name for item in (folder / "checkpoints").glob("[!.]*") if item.is_dir())
        raise ConfigError(f"--checkpoint: {folder} has no {name!r}{suggest_name(name, known, 'It has')}")
    require_whole(path)
    return path


def _is_unevaluated(last: Checkpoint) -> bool:
    """Whether a run was evaluated only before training."""
    state = last.loop.get("state", {})
    return last.update > 0 and state.get("evaluated_at", last.update) in (None, 0)


def _read_update(best: Path) -> int:
    try:
        return int(json.loads((best / "loop.json").read_text())["update"])
    except (OSError, ValueError, KeyError):  # `require_whole` says what is wrong with it
        return 1


def _describe_best(best: Path) -> str:
    loop = json.loads((best / "loop.json").read_text())
    values = loop.get("state", {}).get("last") or {}
    success = f", held-out success {values['success']:.2f}" if "success" in values else ""
    return f"the best of those that were evaluated, of update {loop['update']}{success}"
