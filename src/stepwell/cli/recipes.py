"""`stepwell recipes`: every recipe and its choices."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, console, take_shown_name

if TYPE_CHECKING:
    from stepwell.algos.recipes import Recipe

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
        description="A recipe is a set of choices: credit, loss, value, KL, reward parts.",
        examples=_EXAMPLES,
    )
    parser.add_argument("words", nargs="*", metavar="show NAME", help="show this one in full; or module:NAME")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from stepwell.algos.recipes import find_recipe

    name = take_shown_name(args.words)
    chosen = _find_all() if name is None else [find_recipe(name)]
    if args.json:
        tables = [dataclasses.asdict(recipe) for recipe in chosen]
        print(json.dumps(tables if name is None else tables[0], indent=2))
    elif name is None:
        _print_table(chosen)
    else:
        _print_one(chosen[0])
    return 0


def _find_all() -> list[Recipe]:
    """Every recipe with a name; one of a package that cannot be imported is reported instead."""
    from stepwell.algos.recipes import find_recipe, list_recipes
    from stepwell.core.errors import ConfigError

    found = []
    for name in list_recipes():
        try:
            found.append(find_recipe(name))
        except ConfigError as error:
            print(f"not listed: {error}", file=sys.stderr)
    return found


def _print_table(recipes: list[Recipe]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "credit", "loss", "value", "KL", "reward parts"):
        table.add_column(heading)
    for recipe in recipes:
        credit = recipe.credit.name if recipe.credit else "–"
        ratio = recipe.loss.kwargs.get("ratio")
        loss = f"{recipe.loss.name}, {ratio} ratio" if ratio else recipe.loss.name
        table.add_row(recipe.name, credit, loss, *(value for _, value in _describe_choices(recipe)[2:5]))
    console().print(table)
    print("\nstepwell recipes NAME shows one with all its arguments; module:NAME is one of your own")


def _print_one(recipe: Recipe) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("recipe", recipe.name)
    for name, value in _describe_choices(recipe):
        table.add_row(name, value)
    console().print(table)


def _describe_choices(recipe: Recipe) -> list[tuple[str, str]]:
    value, kl = recipe.value, recipe.kl
    optional = [f"{part} if offered" for part in recipe.optional_reward_parts]
    needs = {
        "critic": recipe.needs_critic,
        "reference": recipe.needs_reference,
        "groups": recipe.needs_groups,
    }
    return [
        ("credit", str(recipe.credit or "–")),
        ("loss", str(recipe.loss)),
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
