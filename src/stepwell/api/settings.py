"""Settings from Python: keywords, functions and classes become the `key=value` settings of a TOML file.

    train={"num_updates": 40}               train.num_updates=40
    **{"train.num_updates": 40}             train.num_updates=40
    recipe={"credit": my_credit}            recipe.credit.function="__main__:my_credit"
    rewards={"parts": [my_reward]}          rewards.parts=["__main__:my_reward"]

Everything passes through `config/loading.py`, so that a mistake is reported in the same words and what a run
folder keeps can be read again. An object is named where it can be found again: `module:name` for what a
module holds (`__main__` is the notebook), `in-process:name` for the rest (lambdas, local classes).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from stepwell.algos.recipes import Recipe
from stepwell.config import loading
from stepwell.config.presets import list_preset_names
from stepwell.config.recipe_presets import choose_preset
from stepwell.config.run import RecipeConfig, RunConfig
from stepwell.config.schema import describe_problem, find_field
from stepwell.config.writing import format_toml
from stepwell.core.errors import ConfigError
from stepwell.core.names import suggest_name
from stepwell.core.user_objects import name_object
from stepwell.envs import registry
from stepwell.envs.base import Env
from stepwell.envs.robots.base import RobotEnv
from stepwell.runs.build.recipe import resolve_recipe

EnvLike = str | type[Env] | type[RobotEnv] | Env | RobotEnv | Mapping[str, Any]
"""An environment by name, as a class, as an object with its options, or as the table `env`."""
RecipeLike = str | Recipe | RecipeConfig | Mapping[str, Any]
RewardLike = Callable[..., Any] | str
RewardsLike = RewardLike | Sequence[RewardLike | Mapping[str, Any]] | Mapping[str, Any]
FunctionLike = Callable[..., Any] | str | Mapping[str, Any]
Overrides = Mapping[str, Any] | Sequence[str]

_DOTTED = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def load_config(
    source: str | Path | RunConfig | None = None, overrides: Overrides = (), **settings: Any
) -> RunConfig:
    """The settings of a TOML file, a run folder or a preset, with changes on top.

    `overrides` are `["train.num_updates=40"]` or `{"train.num_updates": 40}`. Keywords are tables or plain
    settings: `load_config("frozenlake", train={"num_updates": 40}, seed=1)`.
    """
    given = list_settings(overrides) if isinstance(overrides, Mapping) else list(overrides)
    every = [*given, *list_settings(settings)]
    if isinstance(source, str) and not Path(source).exists():
        source = choose_preset(source, every)
    return loading.load_config(source, every)


def list_presets() -> tuple[str, ...]:
    """The names of the presets, each of which `load_config` and `train` take."""
    return list_preset_names()


def recipe(
    name: str | Recipe,
    *,
    credit: FunctionLike | None = None,
    loss: FunctionLike | None = None,
    **choices: Any,
) -> RecipeConfig:
    """A recipe with other choices: `recipe("grpo", credit=my_credit, kl_coef=0.0)`.

    `credit` and `loss` are functions (declared with `sw.credit` and `sw.loss`), their names, or tables of
    arguments, `{"function": my_credit, "gamma": 0.9}`; a table without `function` changes arguments of the
    recipe's own function. `choices` are the other settings of the table `recipe`. What is not given stays as
    the recipe has it, or as the configuration does that it is used with.
    """
    tables = {"name": name, "credit": _read_table(credit), "loss": _read_table(loss), **choices}
    given = {key: value for key, value in tables.items() if value is not None}
    try:
        config = RecipeConfig.model_validate(given)
    except ValidationError as error:
        key, words = describe_problem(RecipeConfig, error.errors(include_url=False)[0])
        raise ConfigError(f"recipe.{key}: {words}" if key else f"recipe: {words}") from None
    resolve_recipe(config)
    return config


def make_env(env: str | type[Env] | type[RobotEnv], options: Mapping[str, Any] | None = None) -> Any:
    """An environment ready for `reset`, by name or class: an `Env`, or a `RobotEnv` for a robot."""
    return registry.make_env(name_object(env), options)


# --- keywords to settings -----------------------------------------------------------------


def list_settings(values: Mapping[str, Any]) -> list[str]:
    """Nested or dotted values as `key=value` settings; objects are named."""
    return [f"{key}={text}" for key, text in _flatten(values, "")]


def list_object_settings(
    env: EnvLike | None, model: Any, recipe: RecipeLike | None, rewards: RewardsLike | None
) -> list[str]:
    """The settings that stand for the objects of `train` and `evaluate`; those that are None are left out."""
    if callable(recipe):
        name = getattr(recipe, "__name__", "my_credit")
        raise ConfigError(
            f'recipe: {name} is a function; write recipe=sw.recipe("grpo", credit={name}), or loss={name}'
        )
    if callable(rewards) or isinstance(rewards, str):
        rewards = [rewards]
    tables = {
        "env": None if env is None else describe_env(env),
        "policy": None if model is None else {"model": str(model)},
        "recipe": {"name": recipe} if isinstance(recipe, str | Recipe) else recipe,
        "rewards": rewards if rewards is None or isinstance(rewards, Mapping) else {"parts": list(rewards)},
    }
    return list_settings({key: value for key, value in tables.items() if value is not None})


def refuse_misspelt_arguments(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse keywords that are no settings, and look like arguments of `function`."""
    for name in settings:
        if "." in name or name in RunConfig.model_fields:
            continue
        guess = suggest_name(name, inspect.signature(function).parameters)
        if guess:
            raise ConfigError(f"{function.__name__}: there is no argument {name!r}{guess}")


def describe_env(env: EnvLike) -> Mapping[str, Any]:
    """The table `env` for an environment that is given as an object."""
    if isinstance(env, Mapping):
        return env
    if isinstance(env, Env | RobotEnv):
        return {"name": type(env), "options": env.options.model_dump(mode="json")}
    if isinstance(env, str) or (isinstance(env, type) and issubclass(env, Env | RobotEnv)):
        return {"name": env}
    raise ConfigError(
        f"env: {env!r} is not an environment; give a name, a subclass of sw.Env, or an object of one"
    )


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        key = prefix + (name if _DOTTED.fullmatch(name) else json.dumps(name))
        if isinstance(value, BaseModel):
            value = {field: getattr(value, field) for field in value.model_fields_set}
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{key}.")
        elif value is None:
            yield key, _write_none(key)
        elif callable(value) and key in ("recipe.credit", "recipe.loss"):
            yield f"{key}.function", format_toml(name_object(value))
        else:
            yield key, format_toml(_as_plain(value), key)


def _write_none(key: str) -> str:
    path = tuple(key.split("."))
    setting = find_field(RunConfig, path)
    if setting is not None and setting.path != path:  # inside a free table, which TOML cannot give a None
        raise ConfigError(f"{key}: None cannot be written as TOML; leave the key out")
    return "none"


def _as_plain(value: Any) -> Any:
    """A value as TOML has it: objects by their names, paths as text, numbers of numpy as numbers."""
    if isinstance(value, Mapping):
        return {name: _as_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    return name_object(value) if callable(value) or isinstance(value, Recipe) else value


def _read_table(function: FunctionLike | None) -> Mapping[str, Any] | None:
    if function is None or isinstance(function, Mapping):
        return function
    return {"function": function}
