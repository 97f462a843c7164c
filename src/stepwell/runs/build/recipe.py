"""A recipe as settings describe it: its name, and other choices.

    [recipe]
    name = "grpo"                           # or "my_module:RECIPE"
    [recipe.credit]
    function = "my_module:my_credit"        # or a built-in name; without it, the recipe's own
    gamma = 0.9                             # an argument of that function

Another credit function starts from its own defaults. Choices that depend on the function or an argument
(where it reads the critic) follow its declaration (`Recipe.with_credit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepwell.algos.declarations import FunctionSpec, Kind
from stepwell.algos.recipes import KLChoice, Recipe, find_recipe
from stepwell.config.run import RecipeConfig
from stepwell.core.errors import ConfigError

_PLAIN = ("entropy_coef", "value_coef", "reward_parts", "bootstrap_truncated")


def resolve_recipe(config: RecipeConfig) -> Recipe:
    """The recipe that settings name, with the choices that they change."""
    try:
        recipe = find_recipe(config.name)
    except ConfigError as error:
        raise ConfigError(f"recipe.name: {error}") from error
    changes: dict[str, Any] = {
        name: getattr(config, name) for name in _PLAIN if getattr(config, name) is not None
    }
    if config.loss:
        changes["loss"] = _change_function("loss", recipe, config.loss)
    kl = _resolve_kl(recipe, config)
    if kl != recipe.kl:
        changes["kl"] = kl
    if not config.credit:
        return replace(recipe, **changes) if changes else recipe
    return recipe.with_credit(_change_function("credit", recipe, config.credit), **changes)


def _change_function(kind: Kind, recipe: Recipe, table: Mapping[str, Any]) -> FunctionSpec:
    """The function that `table` names, or the recipe's own, with the arguments that `table` gives."""
    kwargs = {name: value for name, value in table.items() if name != "function"}
    if "function" in table:
        name = table["function"]
        if not isinstance(name, str):
            raise ConfigError(f"recipe.{kind}.function: {name!r} is not a name; give one, or module:name")
        return FunctionSpec(name, kwargs)
    base: FunctionSpec | None = getattr(recipe, kind)
    if base is None:
        raise ConfigError(
            f"recipe.{kind}: {recipe.name} has no {kind} function to give arguments to; name one with "
            f"recipe.{kind}.function"
        )
    return FunctionSpec(base.name, {**base.kwargs, **kwargs})


def _resolve_kl(base: Recipe, config: RecipeConfig) -> KLChoice | None:
    if config.kl_coef == 0:
        return None
    given = config.kl_coef, config.kl_estimator, config.kl_in
    if all(item is None for item in given):
        return base.kl
    start = base.kl or KLChoice("k3", 0.001, "loss")
    return KLChoice(
        config.kl_estimator or start.estimator,
        start.coef if config.kl_coef is None else config.kl_coef,
        config.kl_in or start.kl_in,
    )
