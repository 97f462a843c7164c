"""The plan of a run: what it will do, how the work is split and what it needs, without training anything."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepwell.config.run import RunConfig
from stepwell.core import ConfigError
from stepwell.core.names import describe_missing_module
from stepwell.policies.numerics import check_dtype
from stepwell.runs.build.components import Components
from stepwell.runs.loop.differences import list_idle_settings
from stepwell.runs.plan.base_plan import BasePlan
from stepwell.runs.plan.text import format_line


def plan_run(config: RunConfig, *, opens_env: bool = False) -> str:
    """What `stepwell train` would do with these settings.

    `opens_env`: also open an environment that takes seconds to open, as one with a browser does.
    """
    if not config.workers.trainers.devices:  # else the policy is placed on the first of them
        check_dtype(config.policy.dtype, config.policy.device)
    if config.pool.url is not None:
        from stepwell.pool.database import parse_database_url

        parse_database_url(config.pool.url)
    _check_folder(config.folder)
    _check_packages(config)
    components = Components(config, for_plan=True, find_model=_find_outline)
    try:
        lines = list(_choose_plan(components, opens_env).lines())
        if config.workers.mode == "off" and config.workers.trainers.devices:
            from stepwell.runs.build.worker_plan import place_policy  # imports torch

            place_policy(config)  # refuses devices that this machine does not have
        if config.workers.mode != "off":
            from stepwell.runs.build.worker_plan import describe_workers  # imports torch

            workers = enumerate(describe_workers(config, components.recipe))
            lines += [format_line("" if i else "workers", text) for i, text in workers]
        lines += [format_line("note", text) for text in list_idle_settings(config)]
    finally:
        components.close()
    return "\n".join(lines)


def _find_outline(*model: Any, **choice: Any) -> Path:
    from stepwell.runs.plan.outline import resolve_outline  # a plan imports only what it needs

    return resolve_outline(*model, **choice)


def _check_folder(folder: str) -> None:
    """Refuse a place where no run folder can be made, as the run would."""
    at = Path(folder).absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        reason = "cannot be written to" if at.is_dir() else "is no folder"
        raise ConfigError(f"folder: cannot make {folder} ({at} {reason}); choose another `folder`")


def _check_packages(config: RunConfig) -> None:
    """Refuse settings whose package is not installed, as the run would."""
    wanted = {
        "peft": config.policy.lora is not None,
        "psycopg": config.pool.url is not None and config.pool.url.startswith("postgres"),
        **{name: getattr(config.monitor, name) for name in ("tensorboard", "wandb", "trackio", "mlflow")},
    }
    for module, is_wanted in wanted.items():
        if is_wanted and find_spec(module) is None:
            raise ConfigError(describe_missing_module(module))


def _choose_plan(components: Components, opens_env: bool) -> BasePlan:
    if components.config.own_agent.function is not None:
        from stepwell.runs.plan.agent_plan import AgentPlan  # imports the gateway and the pool

        return AgentPlan(components)
    if components.is_robot:
        from stepwell.runs.plan.robot_plan import RobotPlan  # a plan imports only what it needs

        return RobotPlan(components)
    from stepwell.runs.plan.language_plan import LanguagePlan

    return LanguagePlan(components, opens_env=opens_env)
