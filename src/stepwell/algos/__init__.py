"""Credit, losses, KL and recipes: pure functions over one flat batch of ragged trajectories.

    timeline ──► credit.* ──► CreditResult ──► LossInputs ──► losses.* ──► (loss, metrics)

`Timeline` is the batch. `credit` turns rewards and values into advantages and critic targets. `losses` turns
advantages and log-probabilities into a number to minimise. `kl` compares with the reference. `recipes` names
the combinations that the papers use. `declarations` says what the trainer must know of a function, and finds
functions of users' own modules. Nothing here does I/O, keeps state, or knows a model. Names are imported when
first used: recipes work without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.algos import credit, kl, losses, recipes
    from stepwell.algos.credit.result import CreditResult
    from stepwell.algos.losses.inputs import LossInputs
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

__getattr__ = lazy_names(
    __name__,
    {
        "RECIPES": "recipes",
        "CreditResult": "credit.result",
        "LossInputs": "losses.inputs",
        "Recipe": "recipes",
        "Segments": "segments",
        "Timeline": "timeline",
        "label_ids": "nested",
    },
)
