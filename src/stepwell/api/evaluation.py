"""`evaluate`: success on held-out tasks of a run, a checkpoint or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.api.run import CONFIG_FILE, Run, find_run
from stepwell.api.settings import (
    EnvLike,
    describe_env,
    list_object_settings,
    list_settings,
    refuse_misspelt_arguments,
)
from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core.errors import ConfigError
from stepwell.core.user_objects import name_object
from stepwell.runs.build.env_defaults import load_own_config
from stepwell.runs.evaluation.evaluate import evaluate_run
from stepwell.runs.evaluation.result import EvalReport


def evaluate(
    agent: Run | str | Path,
    config: str | Path | RunConfig | None = None,
    *,
    env: EnvLike | None = None,
    samples: int | None = None,
    num_tasks: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    **settings: Any,
) -> EvalReport:
    """Play held-out tasks and return success with its 95 % interval, pass@k, reward and turns.

    agent        a run (its best checkpoint), a run folder, a checkpoint, or a model
    config       a preset, TOML file or `RunConfig`; without one the run's own settings, or for a model the
                 preset `own` fitted to `env`
    env          another environment, as in `train`
    samples      attempts per task; `result.pass_at(k)` is known up to it
    num_tasks    distinct held-out tasks
    temperature  0 is greedy
    folder       keep figures, episodes and a page with replays there
    """
    refuse_misspelt_arguments(evaluate, settings)
    if not isinstance(agent, Run | str | Path):
        raise ConfigError(
            f"evaluate: an object of type {type(agent).__name__} cannot be evaluated; give a run, its "
            "folder, a checkpoint, or the name or directory of a model"
        )
    name = str(agent.folder if isinstance(agent, Run) else agent)
    wanted = {"samples_per_task": samples, "num_tasks": num_tasks, "temperature": temperature}
    more = [
        *list_object_settings(env, None, None, None),
        *list_settings(settings),
        *list_settings({"eval": {key: value for key, value in wanted.items() if value is not None}}),
    ]
    own = find_run(name)
    if config is not None or own is not None:
        built = load_config(own.folder if config is None and own is not None else config, more)
    elif env is not None:
        built, _ = load_own_config(str(name_object(describe_env(env).get("name"))), more)
    else:
        raise ConfigError(
            f"evaluate: {name!r} is not a run folder (it has no {CONFIG_FILE}); give env or config to say "
            "which tasks this model is to solve"
        )
    return evaluate_run(
        name,
        built,
        num_tasks=built.eval.num_tasks,
        samples_per_task=built.eval.samples_per_task,
        temperature=built.eval.temperature,
        seed=seed,
        folder=None if folder is None else Path(folder),
    )
