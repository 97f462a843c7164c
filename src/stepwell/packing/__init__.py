"""Steps to prefix tree to packed batch, tree attention, and back to per-step outputs.

`pack` merges the steps of a batch by their shared prefixes; a policy runs the result
with `tree_attention`; `backward` gives the gradient of any loss over the batch, whatever
the token budget. `replay` lays the same steps out one by one, for models whose attention
cannot be replaced.
"""

from stepwell.packing.attention import tree_attention
from stepwell.packing.batch import Microbatch, Packed, StepTable, pack
from stepwell.packing.gradient import Evaluator, LossFunction, Outputs, backward, check_finite, evaluate
from stepwell.packing.layout import TreeLayout
from stepwell.packing.replay import replay
from stepwell.packing.token_scores import token_scores
from stepwell.packing.tree import PrefixTree

__all__ = [
    "Evaluator",
    "LossFunction",
    "Microbatch",
    "Outputs",
    "Packed",
    "PrefixTree",
    "StepTable",
    "TreeLayout",
    "backward",
    "check_finite",
    "evaluate",
    "pack",
    "replay",
    "token_scores",
    "tree_attention",
]
