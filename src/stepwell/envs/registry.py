"""Environments by name: built in, from Gymnasium, or by import path.

    frozenlake              a name of `ENVS`
    gymnasium:CartPole-v1   any Gymnasium environment; with continuous actions it is a robot's
    metaworld               a robot environment: a subclass of `robots.base.RobotEnv`
    remote:URL#frozenlake   any of them on a server (`stepwell serve envs`); several URLs with commas between
    openenv:URL             an environment that OpenEnv serves
    number_line             a name that an installed package adds (entry point `stepwell.envs`)
    module:Class            a subclass of Env or RobotEnv, importable or in the current folder
    folder/file.py:Class    the same by the path of its file

An environment is imported when it is opened and not before; a robot's simulator, when its first task is made.
Options are checked against the environment's own settings; a misspelt one is refused with the nearest name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from stepwell.config.base import Settings
from stepwell.core import ConfigError, EnvDescription, EnvError, user_objects
from stepwell.core.errors import StepwellError
from stepwell.core.names import suggest_name
from stepwell.core.user_code import format_own_lines, import_user_module
from stepwell.envs.base import Env, require_type
from stepwell.envs.robots.base import RobotEnv

LANGUAGE_ENVS: dict[str, str] = {
    "courier": "stepwell.envs.courier.env:Courier",
    "frozenlake": "stepwell.envs.frozenlake.env:FrozenLake",
    "sokoban": "stepwell.envs.sokoban.env:Sokoban",
    "svg": "stepwell.envs.svg.env:Svg",
    "navigation": "stepwell.envs.navigation.env:Navigation",
    "primitive_skill": "stepwell.envs.primitive_skill.env:PrimitiveSkill",
    "multihop_qa": "stepwell.envs.multihop_qa.env:MultihopQA",
    "paper_search": "stepwell.envs.paper_search.env:PaperSearch",
    "household": "stepwell.envs.household.env:Household",
    "shop": "stepwell.envs.shop.env:ShopEnv",
    "web": "stepwell.envs.web.env:WebEnv",
}
ADAPTED_ENVS: dict[str, str] = {  # foreign environments: each needs its own package
    "scienceworld": "stepwell.envs.scienceworld_env:ScienceWorld",
    "textworld_express": "stepwell.envs.textworld_express_env:TextWorldExpress",
}
ROBOT_ENVS: dict[str, str] = {
    "metaworld": "stepwell.envs.robots.metaworld.env:MetaWorld",
    "fetch": "stepwell.envs.robots.fetch.env:Fetch",
    "robosuite": "stepwell.envs.robots.robosuite_env:Robosuite",
    "libero": "stepwell.envs.robots.libero_env:Libero",
    "maniskill": "stepwell.envs.robots.maniskill_env:ManiSkill",
    "robocasa": "stepwell.envs.robots.robocasa_env:RoboCasa",
}
ENVS: dict[str, str] = LANGUAGE_ENVS | ADAPTED_ENVS | ROBOT_ENVS
GYMNASIUM, REMOTE, OPENENV = "gymnasium", "remote", "openenv"


def list_env_names() -> tuple[str, ...]:
    """The built-in environments, then those that installed packages add (entry point `stepwell.envs`)."""
    return tuple(dict.fromkeys((*ENVS, *user_objects.list_installed(user_objects.ENVS))))


def find_env_type(name: str) -> type[Env] | type[RobotEnv]:
    """The class behind a name."""
    prefix, separator, rest = name.partition(":")
    if name in ENVS:
        return _import_env_type(ENVS[name])
    if not separator:
        added = user_objects.find_installed(user_objects.ENVS, name)
        if added is None:
            raise ConfigError(_describe_unknown_env(name))
        return _import_env_type(added)
    if prefix == GYMNASIUM:
        from stepwell.envs.gymnasium_env import make_gymnasium_type

        return make_gymnasium_type(rest)
    if prefix == REMOTE:
        from stepwell.envs.remote import make_remote_type

        return make_remote_type(rest)
    if prefix == OPENENV:
        from stepwell.envs.remote import make_openenv_type

        return make_openenv_type(rest)
    return _import_env_type(name)


def read_options(name: str, options: Mapping[str, Any] | Settings | None = None) -> Settings:
    """Plain values as the settings of an environment; invalid ones raise a `ConfigError` of one sentence."""
    kind = find_env_type(name).Options
    if isinstance(options, kind):
        return options
    try:
        return kind.model_validate(dict(options or {}))
    except ValidationError as error:
        raise ConfigError(_explain_refusal(name, kind, error)) from None


def count_places(name: str, options: Mapping[str, Any] | Settings | None = None) -> int | None:
    """How many episodes one process can have under way in an environment; None: as many as you like."""
    kind = find_env_type(name)
    return kind.count_places(read_options(name, options)) if issubclass(kind, Env) else None


def make_env(name: str, options: Mapping[str, Any] | Settings | None = None) -> Any:
    """An environment ready for `reset`: an `Env`, or a `RobotEnv` (its `is_robot` says which)."""
    kind = find_env_type(name)
    settings = read_options(name, options)
    if name in ENVS or name.partition(":")[0] in (GYMNASIUM, REMOTE, OPENENV):
        return kind(settings)
    try:
        env = kind(settings)
    except (StepwellError, ImportError):
        raise
    except (Exception, SystemExit) as error:  # a constructor of a user's own may raise anything
        raise EnvError(f"env {name!r} cannot be made:\n{format_own_lines(error)}") from error
    if not hasattr(env, "options"):
        raise ConfigError(f"env {name!r}: its __init__ must take options and call super().__init__(options)")
    if isinstance(env, Env):
        require_type(env, "description", env.description, EnvDescription)
    return env


def _import_env_type(path: str) -> type[Env] | type[RobotEnv]:
    module_name, _, class_name = path.rpartition(":")
    found: Any
    if user_objects.is_process_bound(path):
        found = user_objects.find_object(path, f"env {path!r}")
    else:
        module = import_user_module(module_name, f"env {path!r}")
        found = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(
            f"env {path!r}: {module_name!r} has no {class_name!r}{_suggest_env(module, class_name)}"
        )
    if isinstance(found, (Env, RobotEnv)):
        raise ConfigError(f"env {path!r} is an object; name its class: {module_name}:{type(found).__name__}")
    if not (isinstance(found, type) and issubclass(found, (Env, RobotEnv))):
        raise ConfigError(f"env {path!r} must be a subclass of stepwell.envs.Env, or of RobotEnv for a robot")
    missing = sorted(found.__abstractmethods__)
    if not hasattr(found, "name"):
        missing.insert(0, "name")
    if missing:
        raise ConfigError(f"env {path!r} is incomplete: {class_name} must define {', '.join(missing)}")
    if inspect.isfunction(inspect.getattr_static(found, "make_task")):
        raise ConfigError(f"env {path!r}: write @classmethod above make_task; tasks are made without an env")
    kind: type[Env] | type[RobotEnv] = found
    if issubclass(kind, Env) and not path.startswith("stepwell."):
        _check_methods(kind, path)
    return kind


_METHODS = {
    "make_task": ("options", "seed"),
    "begin": ("task", "seed"),
    "act": ("action",),
    "observe": (),
    "oracle": (),
}


def _check_methods(kind: type[Env], path: str) -> None:
    """Refuse methods that cannot be called as they will be, before the first episode fails in them."""
    for name, arguments in _METHODS.items():
        method = getattr(kind, name)
        first = "cls" if name == "make_task" else "self"
        wanted = f"def {name}({', '.join((first, *arguments))})"
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise ConfigError(
                f"env {path!r}: {name} is async; write {wanted}, or derive the class from "
                "stepwell.envs.AsyncEnv, which awaits begin_async, act_async and observe_async"
            )
        if inspect.isgeneratorfunction(method):
            raise ConfigError(f"env {path!r}: {name} has a yield; write {wanted}, which returns its result")
        try:
            inspect.signature(method).bind(*(() if name == "make_task" else (None,)), *arguments)
        except TypeError as error:
            raise ConfigError(f"env {path!r}: {name} must be called as {wanted} ({error})") from None


def _suggest_env(module: ModuleType, class_name: str) -> str:
    """The environments of a module, for the message about one that it does not have."""
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, (Env, RobotEnv))
        and value.__module__ == module.__name__
    ]
    has = f"it has {', '.join(own)}" if own else "write a subclass of stepwell.envs.Env there"
    return suggest_name(class_name, own) or f"; {has}"


def _describe_unknown_env(name: str) -> str:
    file = name if name.endswith(".py") else f"{name}.py"
    if os.path.isfile(file):
        return f"env {name!r} is a file; name the class in it as well: {name}:CLASS"
    module, _, kind = name.replace("/", ".").rpartition(".")
    if kind.isidentifier() and os.path.isfile(f"{module.replace('.', '/')}.py"):
        return f"there is no env {name!r}; did you mean '{module}:{kind}'?"
    return (
        f"there is no env {name!r}{suggest_name(name, list_env_names(), 'Known')}, "
        f"{GYMNASIUM}:ID, or an import path module:Class"
    )


def _explain_refusal(name: str, kind: type[Settings], error: ValidationError) -> str:
    """The first problem of a validation, with the nearest name of a misspelt option."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        guess = suggest_name(field, kind.model_fields, "Its options")
        return f"env.options.{field} is not an option of {name}{guess}"
    from stepwell.config.schema import describe_problem

    key, words = describe_problem(kind, first)
    return f"{f'env.options.{key}' if key else 'env.options'} of {name}: {words}"
