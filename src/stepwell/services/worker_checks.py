"""What the host of a worker lets a caller build. The modules and files that it loads are the host's.

    simulator   an environment that the host names, with options that do not belong to the host
    generator   the engine of a run, built from its settings for policy, engine, sampling and environment;
                the model is one that the host names, and everything that could name a module is left out

What a caller sends is data: weights are arrays, and the first frame is rebuilt here from checked values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from stepwell import __version__
from stepwell.config.run import RunConfig
from stepwell.config.schema import describe_problem
from stepwell.config.worker_service import WorkerServiceConfig
from stepwell.core.frames import Frame
from stepwell.envs.registry import ENVS
from stepwell.services.caller_options import read_caller_options
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.workers.engine_builders import RUN

_BUILT_IN = re.compile(r"tiny-[\w.-]+|smollm2-135m|smollm2-vlm")
_PARTS = ("seed", "policy", "engine", "sampling", "train", "eval", "num_threads")
"""The settings of a run that its engine depends on, besides the environment and the recipe's name."""


def check_first_frame(config: WorkerServiceConfig, device: str, frame: Frame) -> Frame:
    """The frame that builds the worker, made of checked values only."""
    settings = frame.header.get("settings")
    if not isinstance(settings, dict):
        raise ServiceError(ErrorKind.INVALID, "the first frame must hold the worker's settings")
    if frame.op == "simulator":
        checked = _check_simulator(config, settings)
    elif frame.op == "generator":
        checked = _check_generator(config, device, settings)
    else:
        raise ServiceError(ErrorKind.INVALID, f"unknown kind of worker {frame.op[:64]!r}")
    return Frame(frame.op, {"settings": checked, "path": [path for path in sys.path if path]})


def _check_simulator(config: WorkerServiceConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    name = settings.get("env")
    options = read_caller_options(
        name, settings.get("options", {}), config.envs or tuple(ENVS), config.env_options, "worker"
    )
    counts = [settings.get("num_batches"), settings.get("batch_size")]
    if any(type(count) is not int or count < 1 for count in counts):
        raise ServiceError(ErrorKind.INVALID, "num_batches and batch_size must be whole numbers above 0")
    if counts[0] * counts[1] > config.max_envs:  # type: ignore[operator]
        raise ServiceError(
            ErrorKind.FORBIDDEN,
            f"{counts[0]} x {counts[1]} environments are more than max_envs of the host ({config.max_envs})",
        )
    return {
        "env": name,
        "options": options.model_dump(mode="json", exclude_unset=True),
        "num_batches": counts[0],
        "batch_size": counts[1],
        "with_state": bool(settings.get("with_state")),
    }


def _check_generator(config: WorkerServiceConfig, device: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    given = settings.get("settings")
    wanted = given.get("config") if isinstance(given, dict) else None
    if settings.get("factory") != RUN or not isinstance(wanted, dict):
        raise ServiceError(ErrorKind.FORBIDDEN, "a host builds the engines of runs, by no other factory")
    kept = {name: wanted[name] for name in _PARTS if name in wanted}
    recipe = str((wanted.get("recipe") or {}).get("name", "steppo"))
    if ":" in recipe:
        raise ServiceError(
            ErrorKind.FORBIDDEN,
            f"recipe.name {recipe[:64]!r} names a module; generators there take built-in ones",
        )
    try:
        run = RunConfig.model_validate({**kept, "recipe": {"name": recipe}})
    except ValidationError as error:
        where, words = describe_problem(RunConfig, error.errors(include_url=False)[0])
        raise ServiceError(
            ErrorKind.INVALID,
            f"{where}: {words}. This host has Stepwell {__version__}; install the version of the run there",
        ) from error
    if run.engine.backend != "embedded":
        raise ServiceError(
            ErrorKind.FORBIDDEN, "engine.backend: a host runs engines of its own and asks no other servers"
        )
    policy = run.policy.model_copy(
        update={"model": _find_model(config, run.policy.model), "revision": None, "device": device}
    )
    run = run.model_copy(update={"policy": policy, "env": _read_env(config, wanted.get("env"))})
    return {"factory": RUN, "settings": {"config": run.model_dump(mode="json"), "folder": None}}


def _read_env(config: WorkerServiceConfig, env: Any) -> Any:
    """The environment: robot policies are shaped by it."""
    from stepwell.config.run import EnvConfig

    env = env if isinstance(env, dict) else {}
    options = read_caller_options(
        env.get("name"), env.get("options", {}), config.envs or tuple(ENVS), config.env_options, "worker"
    )
    return EnvConfig(name=env["name"], options=options.model_dump(mode="json", exclude_unset=True))


def _find_model(config: WorkerServiceConfig, wanted: str) -> str:
    """The host's model of that name. Of a path, its last part counts."""
    for name in (wanted, wanted.rstrip("/").rpartition("/")[2]):
        if name in config.models:
            return config.models[name]
        if _BUILT_IN.fullmatch(name):
            return name
    names = ", ".join((*config.models, "built-in ones"))
    raise ServiceError(
        ErrorKind.FORBIDDEN,
        f"policy.model {wanted[:128]!r} is not hosted here; available: {names}. The host names it with "
        "`stepwell serve worker --model NAME=DIR`",
    )
