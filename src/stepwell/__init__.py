"""Stepwell: reinforcement learning for agents that act in many steps.

    import stepwell as sw

    run = sw.train(env=MyEnv, recipe=sw.recipe("grpo", credit=my_credit), rewards=[my_reward])
    run.success, run.policy, sw.evaluate(run, samples=8), run.plot()

`docs/python.md` explains these names. Importing this package imports nothing heavy: each name is imported
when it is first used. The parts behind them are imported from their own folders (`stepwell.core`,
`stepwell.algos`, ...), and `docs/structure.md` says what each folder holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.algos.credit.result import CreditResult
    from stepwell.algos.declarations import credit, loss
    from stepwell.api.evaluation import evaluate
    from stepwell.api.run import Run, load_run
    from stepwell.api.settings import list_presets, load_config, make_env, recipe
    from stepwell.api.training import train
    from stepwell.contracts.kinds import check_object
    from stepwell.core.env_description import ActionSpace, EnvDescription
    from stepwell.core.observation import Observation
    from stepwell.core.task import Task
    from stepwell.envs.base import Effect, Env

__version__ = "0.2.0"

_HOMES = {
    "train": "api.training",
    "evaluate": "api.evaluation",
    "Run": "api.run",
    "load_run": "api.run",
    "load_config": "api.settings",
    "list_presets": "api.settings",
    "recipe": "api.settings",
    "make_env": "api.settings",
    "check_object": "contracts.kinds",
    "Env": "envs.base",
    "Effect": "envs.base",
    "EnvDescription": "core.env_description",
    "ActionSpace": "core.env_description",
    "Observation": "core.observation",
    "Task": "core.task",
    "credit": "algos.declarations",
    "loss": "algos.declarations",
    "CreditResult": "algos.credit.result",
}

__all__ = [
    "ActionSpace",
    "CreditResult",
    "Effect",
    "Env",
    "EnvDescription",
    "Observation",
    "Run",
    "Task",
    "check_object",
    "credit",
    "evaluate",
    "list_presets",
    "load_config",
    "load_run",
    "loss",
    "make_env",
    "recipe",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from difflib import get_close_matches

        guess = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, _HOMES, 1))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{guess}")
    from stepwell.core.lazy import lazy_names  # imports numpy: only for those who use a name

    return lazy_names(__name__, _HOMES)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
