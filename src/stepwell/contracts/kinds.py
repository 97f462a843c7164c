"""Finds the kind of a named object, and the checker of that kind.

The kind follows from the object: from the type of a `Recipe`, a `Strategy` or an environment class, and from
the decorator of a function (`@credit`, `@loss`, `@reward_part`, `@shard_rule`). A function without a
decorator needs `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from stepwell.core.errors import ConfigError
from stepwell.core.names import suggest_name
from stepwell.core.user_objects import find_object, get_declared_kind, is_import_path, name_object

CheckedKind = Literal["env", "credit", "loss", "recipe", "reward", "style", "shard"]
KINDS: tuple[CheckedKind, ...] = get_args(CheckedKind)


def check_object(
    target: Any,
    kind: CheckedKind | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    env: str = "frozenlake",
) -> Any:
    """The report about `target`: a name, `module:name`, or the object itself.

    `options` are arguments of a credit function or loss, or options of an environment. Reward functions are
    tested on steps of `env`.
    """
    name = name_object(target)
    kind = kind or find_kind(name)
    given = dict(options or {})
    if kind == "env":
        from stepwell.envs.check import check_env

        return check_env(name, given)
    if kind == "credit":
        from stepwell.contracts.credit import check_credit

        return check_credit(name, given)
    if kind == "loss":
        from stepwell.contracts.loss import check_loss

        return check_loss(name, given)
    if kind == "reward":
        from stepwell.contracts.reward import check_reward

        return check_reward(name, env, given)
    if given:
        raise ConfigError(f"a {kind} takes no options, got {', '.join(given)}")
    if kind == "recipe":
        from stepwell.contracts.recipe import check_recipe

        return check_recipe(name)
    if kind == "style":
        from stepwell.contracts.prompt_style import check_prompt_style

        return check_prompt_style(name)
    from stepwell.contracts.shard_rule import check_shard_rule

    return check_shard_rule(name)


def find_kind(name: str) -> CheckedKind:
    """The kind of a named object; a `ConfigError` if it is ambiguous or unknown."""
    if not is_import_path(name):
        return _find_built_in(name)
    if name.partition(":")[0] in ("gymnasium", "remote", "openenv"):
        return "env"
    found = find_object(name, f"{name!r}")
    marked = get_declared_kind(found)
    if marked in KINDS:
        return marked
    if isinstance(found, type):
        return "env"
    from stepwell.agents import Strategy
    from stepwell.algos import Recipe

    if isinstance(found, Recipe):
        return "recipe"
    if isinstance(found, Strategy):
        return "style"
    raise ConfigError(
        f"{name!r} is a {type(found).__name__} that does not say what it is; give --kind "
        f"{', '.join(KINDS[:-1])} or {KINDS[-1]}, or mark it (@credit, @loss, @reward_part, @shard_rule)"
    )


def _find_built_in(name: str) -> CheckedKind:
    from stepwell.agents.strategy import STRATEGIES
    from stepwell.algos.declarations import CREDIT_MODULES, LOSS_MODULES
    from stepwell.algos.recipes import list_recipes
    from stepwell.envs import list_env_names

    known: dict[CheckedKind, Any] = {
        "env": list_env_names(),
        "credit": CREDIT_MODULES,
        "loss": LOSS_MODULES,
        "recipe": list_recipes(),
        "style": STRATEGIES,
    }
    fitting = [kind for kind, names in known.items() if name in names]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"{name!r} names a {' and a '.join(fitting)}; say which with --kind {fitting[0]}")
    every = [known_name for names in known.values() for known_name in names]
    guess = suggest_name(name, every) or "."
    raise ConfigError(f"nothing is called {name!r}{guess} Write module:name for something of your own")
