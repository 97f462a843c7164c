"""Prefix trees, packed batches and tree attention.

`pack` merges the steps of a batch by their shared prefixes. A policy runs the result with `tree_attention`.
`backward` computes the gradient of any loss over the batch, whatever the token budget. `replay` lays out the
same steps one by one, for models whose attention cannot be replaced. `pack_arrays` stacks the steps of robot
policies, which share no prefixes. Names are imported on first use: packing trees does not need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.packing.arrays import ArrayMicrobatch, PackedArrays, pack_arrays
    from stepwell.packing.attention import tree_attention
    from stepwell.packing.batch import FlatAction, Microbatch, Packed, StepTable, pack
    from stepwell.packing.gradient import (
        Evaluator,
        LossFunction,
        Outputs,
        SeparableLoss,
        backward,
        check_finite,
        evaluate,
    )
    from stepwell.packing.layout import TreeLayout
    from stepwell.packing.scores import token_scores
    from stepwell.packing.single_steps import replay
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
    "SeparableLoss",
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

__getattr__ = lazy_names(
    __name__,
    {
        "ArrayMicrobatch": "arrays",
        "Evaluator": "gradient",
        "FlatAction": "batch",
        "LossFunction": "gradient",
        "Microbatch": "batch",
        "Outputs": "gradient",
        "Packed": "batch",
        "PackedArrays": "arrays",
        "PrefixTree": "tree",
        "SeparableLoss": "gradient",
        "StepTable": "batch",
        "TreeLayout": "layout",
        "backward": "gradient",
        "check_finite": "gradient",
        "evaluate": "gradient",
        "pack": "batch",
        "pack_arrays": "arrays",
        "replay": "single_steps",
        "token_scores": "scores",
        "tree_attention": "attention",
    },
)
