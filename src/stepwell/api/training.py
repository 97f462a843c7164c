"""`train`: a training run in this process, from objects and settings.

A notebook's own classes and functions work, because everything of a run that needs them happens in this
process. Worker processes (`workers.mode`) and a user's own agent (`own_agent.function`) run elsewhere, where
`__main__` is another module: such a run is refused before it starts, with what to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.api.run import Run, load_run
from stepwell.api.settings import (
    EnvLike,
    RecipeLike,
    RewardsLike,
    describe_env,
    list_object_settings,
    list_settings,
    refuse_misspelt_arguments,
)
from stepwell.config.loading import load_config
from stepwell.config.presets import list_preset_names
from stepwell.config.run import RunConfig
from stepwell.config.writing import flatten_tables
from stepwell.contracts.before_a_run import refuse_broken_functions
from stepwell.core.errors import ConfigError
from stepwell.core.user_objects import is_process_bound, name_object
from stepwell.runs.build.env_defaults import load_own_config
from stepwell.runs.build.recipe import resolve_recipe


def train(
    config: str | Path | RunConfig | None = None,
    *,
    env: EnvLike | None = None,
    model: str | Path | Run | None = None,
    recipe: RecipeLike | None = None,
    rewards: RewardsLike | None = None,
    resume: str | Path | Run | None = None,
    **settings: Any,
) -> Run:
    """Train to the end and return the run.

    config    a preset, a TOML file, a run folder or a `RunConfig`. Without one, `env` is trained with the
              preset `own`, fitted to the environment
    env       a name, a subclass of `sw.Env`, an object of one (with its options), or the table `env`
    model     a built-in model, a model directory, or a run whose weights to start from
    recipe    a name, or what `sw.recipe` returns
    rewards   a function `reward(step) -> float` or several, each a part of the step's reward; or the table
              `rewards`
    resume    go on with this run; only `settings` may change
    settings  any other setting: tables (`train={"num_updates": 40}`), plain ones (`seed=1`, `name="first"`),
              dotted ones (`**{"train.num_updates": 40}`). `monitor={"console": False}` is silent

    Interrupting (Ctrl-C, or a notebook's stop button) ends the run after the present update, saves it and
    raises `KeyboardInterrupt`. Go on with `train(resume=folder)`.
    """
    refuse_misspelt_arguments(train, settings)
    if isinstance(config, type) or callable(getattr(config, "reset", None)):
        name = getattr(config, "__name__", type(config).__name__)
        raise ConfigError(f"train: {name} is not a configuration; give an environment as env={name}")
    given = (config, env, model, recipe, rewards)
    if resume is not None and any(item is not None for item in given):
        raise ConfigError(
            "train: resume uses the run's own settings; leave out config, env, model, recipe and rewards"
        )
    folder = None if resume is None else load_run(resume).folder
    if isinstance(model, Run):
        model = model.checkpoint
    more = list_object_settings(env, model, recipe, rewards) + list_settings(settings)
    notes: tuple[str, ...] = ()
    if folder is not None:
        built = load_config(folder, more)
    elif config is not None:
        built = load_config(config, more)
    elif env is not None:
        built, notes = load_own_config(str(name_object(describe_env(env).get("name"))), more)
    else:
        raise ConfigError(
            f"train: give a configuration (a TOML file or a preset: {', '.join(list_preset_names())}), "
            "an env, or a run to resume"
        )
    require_importable(built)
    refuse_broken_functions(resolve_recipe(built.recipe))  # before anything heavy is imported
    from stepwell.runs import run as runs

    for note in notes if built.monitor.console else ():
        print(note)
    trained = runs.train(built, resume=folder)
    runs.raise_if_interrupted(trained)
    return Run(trained)


def require_importable(config: RunConfig) -> None:
    """Refuse settings that name objects of this process where other processes need them."""
    where = None
    if config.workers.mode != "off" and config.workers.processes:
        where, fix = (
            f"workers.mode={config.workers.mode} starts worker processes",
            "or set workers.mode='off'",
        )
    elif config.own_agent.function is not None and is_process_bound(config.own_agent.function):
        where, fix = "an agent of your own runs in processes", "such as my_agent.py:agent"
    if where is None:
        return
    bound = find_process_bound(config)
    if bound:
        named = ", ".join(f"{key} = {name!r}" for key, name in bound.items())
        raise ConfigError(
            f"{where}, which cannot see what this notebook or script defines ({named}); write it into a "
            f"module (in a notebook: %%writefile my_module.py) and import it from there, {fix}"
        )


def find_process_bound(config: RunConfig) -> dict[str, str]:
    """The settings whose objects only this process has, with their names."""
    found = {}
    for path, value in flatten_tables(config.model_dump(mode="json")):
        for item in value if isinstance(value, list) else [value]:
            name = item.get("function") if isinstance(item, dict) else item
            if isinstance(name, str) and is_process_bound(name):
                found[".".join(path)] = name
    return found
