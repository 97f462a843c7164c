"""Steps to prefix tree to packed batch, tree attention, and back to per-step outputs.

`pack` merges the steps of a batch by their shared prefixes; a policy runs the result
with `tree_attention`; `backward` gives the gradient of any loss over the batch, whatever
the token budget. `replay` lays the same steps out one by one, for models whose attention
cannot be replaced. `pack_arrays` stacks the steps of robot policies, which share no prefixes.
"""

from stepwell.packing.arrays import ArrayMicrobatch, PackedArrays, pack_arrays
from stepwell.packing.attention import tree_attention
from stepwell.packing.batch import FlatAction, Microbatch, Packed, StepTable, pack
from stepwell.packing.gradient import Evaluator, LossFunction, Outputs, backward, check_finite, evaluate
from stepwell.packing.layout import TreeLayout
from stepwell.packing.replay import replay
from stepwell.packing.token_scores import token_scores
from stepwell.packing.tree import PrefixTree

__all__ = [
    "ArrayMicrobatch",
    "Evaluator",
    "FlatAction",
    "LossFunction",
    "Microbatch",
    "Outputs",
    "Packed",
    "PackedArrays",
    "PrefixTree",
    "StepTable",
    "TreeLayout",
    "backward",
    "check_finite",
    "evaluate",
    "pack",
    "pack_arrays",
    "replay",
    "token_scores",
    "tree_attention",
]
