"""A recipe of your own: credit and loss of other files, no KL, whitened advantages.

    stepwell check examples/own_recipe.py:RECIPE
    stepwell recipes examples/own_recipe.py:RECIPE
    stepwell train frozenlake recipe.name=examples/own_recipe.py:RECIPE

A recipe is data. It starts from a built-in one, and what cannot work together is refused when it is made. An
installed package offers its recipes by name: `[project.entry-points."stepwell.recipes"]` in its
pyproject.toml with the line `cautious = "my_package.recipes:RECIPE"`; then `recipe.name=cautious`.
"""

from dataclasses import replace

from own_credit import best_of_siblings  # files beside this one can be imported
from own_loss import cautious_loss

from stepwell.algos.recipes import RECIPES, FunctionSpec

RECIPE = replace(
    RECIPES["grpo"],
    name="cautious",
    credit=FunctionSpec.of(best_of_siblings, bonus=0.5),
    loss=FunctionSpec.of(cautious_loss, pull=0.1),
    kl=None,
    whiten="steps",
    entropy_coef=0.01,
)
