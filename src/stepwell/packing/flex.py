"""Tree attention on CUDA with FlexAttention, over blocks of the tree.

The mask is the closed form of the tree, `k <= q < subtree_end[k]`, evaluated inside the kernel. Whether a
block of 128 x 128 is empty, full or mixed follows from the minimum and maximum of `subtree_end` in each block
of keys; there is never an array of T x T. A block mask is built once per tree and window and shared by all
layers and both passes.

The kernel is compiled once per set of scoring options and dtype, and again when lengths first vary. Lengths
are padded to whole blocks, and padding tokens see only themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from stepwell.packing.kernel_inputs import ScoreOptions
from stepwell.packing.layout import TreeLayout

BLOCK = 128


def round_up_length(num_tokens: int) -> int:
    """Round `num_tokens` up to whole blocks."""
    return -(-num_tokens // BLOCK) * BLOCK


def can_use_flex(query: Tensor) -> bool:
    """Whether the kernel supports these tensors."""
    is_supported = query.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return query.is_cuda and is_supported and query.shape[-1] >= 16 and query.shape[2] % BLOCK == 0


def flex_tree_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out."""
    if ("flex", how.window) not in layout.cache:
        layout.cache["flex", how.window] = build_block_mask(layout, how.window)
    attend = _compile_attention(
        how.scaling,
        how.softcap,
        how.window is not None,
        query.shape[1] != key.shape[1],
        torch.is_grad_enabled(),
    )
    output: Tensor = attend(query, key, value, layout.cache["flex", how.window])
    return output.transpose(1, 2)


@cache
def _compile_attention(
    scaling: float, softcap: float | None, has_window: bool, is_grouped: bool, has_grad: bool
) -> Callable[..., Any]:
    """Compile FlexAttention for one set of scoring options; the arguments become constants.

    Dynamo would check the Python objects of the mask on every call of every layer. Calls of one of these
    functions can differ only in tensors, so only the checks of tensors are kept. Each function has its own
    code object, which is dynamo's cache key.
    """

    cap = 1.0 if softcap is None else softcap

    def cap_score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Any:
        score_mod = None if softcap is None else cap_score
        return flex_attention(query, key, value, score_mod, mask, scaling, is_grouped)

    own_code = attend.__code__.replace(co_name=f"attend_{next(_names)}")
    own = FunctionType(own_code, attend.__globals__, own_code.co_name, None, attend.__closure__)
    return torch.compile(own, options={"guard_filter_fn": _keep_tensors})


_names = itertools.count()


def _keep_tensors(guards: Sequence[Any]) -> list[bool]:
    return [guard.guard_type in ("TENSOR_MATCH", "SHAPE_ENV", "GRAD_MODE") for guard in guards]


def build_block_mask(layout: TreeLayout, window: int | None) -> BlockMask:
    """Build the tree's block mask. `window` limits how far up the path a token sees."""
    some, full = classify_blocks(layout.ends, layout.depths, window)
    device = layout.device
    ends = torch.from_numpy(layout.ends).to(device)

    def is_ancestor(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    mask: Callable[..., Tensor] = is_ancestor
    if window is not None:
        depths = torch.from_numpy(layout.depths).to(device)
        nearest = depths - (window - 1)

        def is_near_ancestor(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key]) & (depths[key] >= nearest[query])

        mask = is_near_ancestor
    return BlockMask.from_kv_blocks(
        *_list_blocks(some & ~full, device),
        *_list_blocks(full, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask,
        seq_lengths=(layout.num_tokens, layout.num_tokens),
    )


def classify_blocks(
    ends: np.ndarray[Any, np.dtype[np.int32]], depths: np.ndarray[Any, np.dtype[np.int32]], window: int | None
) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """For every (query block, key block): whether any query sees any key, and whether every query sees every
    key.

    The first may be True for a block without any visible pair (with a window), but never False for a block
    with one.
    """
    per_block = ends.reshape(-1, BLOCK)
    first = np.arange(per_block.shape[0]) * BLOCK
    is_before = first[:, None] > first[None, :]
    some = (is_before & (per_block.max(1)[None, :] > first[:, None])) | np.eye(first.size, dtype=bool)
    full = is_before & (per_block.min(1)[None, :] >= first[:, None] + BLOCK)
    if window is not None:
        depth = depths.reshape(-1, BLOCK)
        nearest = depth - (window - 1)
        some &= depth.max(1)[None, :] >= nearest.min(1)[:, None]
        full &= depth.min(1)[None, :] >= nearest.max(1)[:, None]
    return some, full


def _list_blocks(blocks: np.ndarray[Any, np.dtype[np.bool_]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Convert a matrix of blocks to FlexAttention's form: the count per row, and the indices, visible blocks
    first."""
    counts = blocks.sum(1, dtype=np.int32)
    indices = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(indices)[None, None].to(device)
