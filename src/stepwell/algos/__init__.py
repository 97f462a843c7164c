"""Credit, losses, KL and recipes: pure functions over one flat batch of ragged trajectories.

    timeline ──► credit.* ──► CreditResult ──► LossInputs ──► losses.* ──► (loss, metrics)

`Timeline` is the batch, `credit` turns rewards and values into advantages and critic targets,
`losses` turns advantages and log-probabilities into a number to minimise, `kl` compares with the
reference, and `recipes` names the combinations that the papers use. Nothing here does I/O, keeps
state, or knows a model.
"""

from stepwell.algos import credit, kl, losses, recipes
from stepwell.algos.credit import CreditResult
from stepwell.algos.losses import LossInputs
from stepwell.algos.nested import label_ids
from stepwell.algos.recipes import RECIPES, Recipe
from stepwell.algos.segments import Segments
from stepwell.algos.timeline import Timeline

__all__ = [
    "RECIPES",
    "CreditResult",
    "LossInputs",
    "Recipe",
    "Segments",
    "Timeline",
    "credit",
    "kl",
    "label_ids",
    "losses",
    "recipes",
]
