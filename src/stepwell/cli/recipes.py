"""`stepwell recipes`: every recipe with what stands in its slots."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, console
from stepwell.core.names import suggest_name

if TYPE_CHECKING:
    from stepwell.algos.recipes import Call, Recipe

_EXAMPLES = (
    ("stepwell recipes", "all of them"),
    ("stepwell recipes steppo", "one, with all its arguments"),
    ("stepwell recipes --json", "for programs"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "recipes",
        run,
        summary="list the recipes, or show one",
        description="A recipe is one choice per slot: credit, loss, value, KL, reward parts.",
        examples=_EXAMPLES,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one in full")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from stepwell.algos.recipes import RECIPES

    chosen = list(RECIPES.values()) if args.name is None else [_named(args.name)]
    if args.json:
        tables = [dataclasses.asdict(recipe) for recipe in chosen]
        print(json.dumps(tables if args.name is None else tables[0], indent=2))
    elif args.name is None:
        _print_table(chosen)
    else:
        _print_one(chosen[0])
    return 0


def _named(name: str) -> Recipe:
    from stepwell.algos.recipes import RECIPES
    from stepwell.core.errors import ConfigError

    if name in RECIPES:
        return RECIPES[name]
    raise ConfigError(f"there is no recipe {name!r}{suggest_name(name, RECIPES, 'Recipes')}")


def _print_table(recipes: list[Recipe]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "credit", "loss", "value", "KL", "reward parts"):
        table.add_column(heading)
    for recipe in recipes:
        credit = recipe.credit.name if recipe.credit else "–"
        ratio = recipe.loss.kwargs.get("ratio")
        loss = f"{recipe.loss.name}, {ratio} ratio" if ratio else recipe.loss.name
        table.add_row(recipe.name, credit, loss, *(value for _, value in _slots(recipe)[2:5]))
    console().print(table)
    print("\nstepwell recipes NAME shows one with all its arguments")


def _print_one(recipe: Recipe) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("recipe", recipe.name)
    for slot, value in _slots(recipe):
        table.add_row(slot, value)
    console().print(table)


def _slots(recipe: Recipe) -> list[tuple[str, str]]:
    value, kl = recipe.value, recipe.kl
    optional = [f"{part} if offered" for part in recipe.optional_reward_parts]
    needs = {
        "critic": recipe.needs_critic,
        "reference": recipe.needs_reference,
        "groups": recipe.needs_groups,
    }
    return [
        ("credit", _call(recipe.credit)),
        ("loss", _call(recipe.loss)),
        ("value", f"{value.loss} at {value.sites}" if value else "–"),
        ("KL", f"{kl.estimator} × {kl.coef:g} in the {kl.kl_in}" if kl else "–"),
        ("reward parts", ", ".join([*recipe.reward_parts, *optional]) or "–"),
        ("whiten", f"over {recipe.whiten}" if recipe.whiten else "no"),
        ("value_coef", f"{recipe.value_coef:g}" if value else "–"),
        ("entropy_coef", f"{recipe.entropy_coef:g}"),
        ("bootstrap_truncated", "yes" if recipe.bootstrap_truncated else "no"),
        ("replay", "yes" if recipe.replay else "no"),
        ("curriculum", "yes" if recipe.curriculum else "no"),
        ("flat_sequence", "yes" if recipe.flat_sequence else "no"),
        ("needs", ", ".join(name for name, is_needed in needs.items() if is_needed) or "nothing"),
    ]


def _call(call: Call | None) -> str:
    if call is None:
        return "–"
    return f"{call.name}({', '.join(f'{name}={value}' for name, value in call.kwargs.items())})"
