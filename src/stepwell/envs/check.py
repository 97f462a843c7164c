"""The environment checker: it plays an environment to test whether it keeps the contract.

Every check is one function named for the fact it tests (`core/contract_report.py`). `stepwell envs check
NAME` prints the report of `check_env`. The checks of text environments are in `check_text`, those of robot
environments in `robots.check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.config.base import Settings
from stepwell.core import InputError
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.envs.base import Env
from stepwell.envs.check_probe import Probe
from stepwell.envs.check_text import CHECKS
from stepwell.envs.registry import find_env_type, read_options
from stepwell.envs.robots.base import RobotEnv
from stepwell.envs.robots.check import ROBOT_CHECKS


def check_env(
    name: str,
    options: Mapping[str, Any] | Settings | None = None,
    *,
    num_tasks: int | None = None,
    min_turns_per_s: float = 1.0,
) -> ContractReport:
    """Play the environment `name` and report, check by check, whether it keeps the contract.

    With `num_tasks` None, text environments use 50 tasks and robot environments a number that they choose. A
    missing dependency of the environment is a `ConfigError`.
    """
    kind, settings = find_env_type(name), read_options(name, options)
    kind.require()
    return check_type(kind, settings, num_tasks=num_tasks, min_turns_per_s=min_turns_per_s)


def check_type(
    kind: type[Env] | type[RobotEnv],
    options: Settings | None = None,
    *,
    num_tasks: int | None = None,
    min_turns_per_s: float = 1.0,
) -> ContractReport:
    """Same as `check_env`, for a class."""
    if num_tasks is None:
        num_tasks = kind.num_checked if issubclass(kind, RobotEnv) else 50
    if num_tasks < 2:
        raise InputError(f"num_tasks must be at least 2, got {num_tasks}")
    probe = Probe(kind, kind.Options() if options is None else options, num_tasks, min_turns_per_s)
    title = getattr(kind, "name", kind.__name__)
    return run_checks(title, ROBOT_CHECKS if kind.is_robot else CHECKS, probe, needs_first=False)
