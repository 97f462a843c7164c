"""Tree attention on CUDA as one flash attention call: every run attends to the keys of its path.

The keys of a run are gathered from the root down to the end of the run. Causal attention aligned at the ends
is then exactly tree attention, without pieces to join. One call computes all runs, and one call their
backward pass. A custom kernel then sums the gradients of keys that several runs share, in float32 and in a
fixed order.

The backward pass gathers the keys again, so that only the original keys are kept. Trees of many short runs
below long paths may gather far more keys than they have tokens; `segments.py` handles those.

Where nothing branches (dialogues without siblings), every run is a whole sequence and its own path. Then
nothing is gathered and nothing summed: this is plain causal attention over sequences of any length.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.packing.device_copies import NumberTable
from stepwell.packing.kernel_inputs import PlanSize, ScoreOptions
from stepwell.packing.layout import TreeLayout
from stepwell.packing.tree import IntArray

MOST_KEYS = 2.0
"""The largest number of gathered keys per token where every head has its own key."""


def find_key_limit(num_heads: int, num_key_heads: int) -> float:
    """The largest number of gathered keys per token.

    Gathering moves bytes of key heads only, so grouped heads afford more of it. On an H200, with three heads
    to a key and five to six keys per token (many short turns below one prompt), an update of 135M is 1.2
    times as fast over paths as over segments, in the same memory.
    """
    group = num_heads // num_key_heads
    return min(2 * group, 6) * MOST_KEYS if group > 1 else MOST_KEYS


class Paths:
    """The keys that each run sees, and the gathered copies of each token, on one device.

    `key_tokens` are the tokens of all paths, run by run; None: they are all tokens in order. The copies of
    token t are `copies[copy_starts[t] : copy_starts[t + 1]]`. Runs beyond those of the plan are empty.
    """

    def __init__(self, size: PlanSize, device: torch.device) -> None:
        runs, keys, self.longest_run, self.longest_path = size.room
        lengths = {"rows": runs + 1, "paths": runs + 1, "keys": keys, "copies": keys}
        lengths["copy_starts"] = size.tokens + 1
        self._table = table = NumberTable(lengths, device, torch.int32)
        self.row_starts, self.key_starts, key_tokens = table["rows"], table["paths"], table["keys"]
        self.key_tokens = key_tokens if keys else None
        self.copies, self.copy_starts = table["copies"], table["copy_starts"]

    def fill(self, plan: PathPlan) -> Paths:
        """Take the paths of a plan over as many tokens."""
        found = {"rows": _count_starts(plan.run_counts), "paths": _count_starts(plan.path_counts)}
        if self.key_tokens is not None:
            per_token = np.bincount(plan.key_tokens, minlength=self.copy_starts.numel() - 1)
            copies = np.argsort(plan.key_tokens, kind="stable")
            found |= {"keys": plan.key_tokens, "copies": copies, "copy_starts": _count_starts(per_token)}
        self._table.fill(found)
        return self


def _count_starts(counts: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)])


@dataclass(frozen=True, slots=True)
class PathPlan:
    """The paths of a tree as arrays of the host: tokens per run, keys per path, and the keys themselves."""

    run_counts: IntArray
    path_counts: IntArray
    key_tokens: IntArray

    @property
    def size(self) -> PlanSize:
        """Tokens, and whether keys are gathered; runs, gathered keys, longest run and longest path."""
        is_plain = np.array_equal(self.run_counts, self.path_counts)
        longest = int(self.run_counts.max()), int(self.path_counts.max())
        keys = 0 if is_plain else int(self.key_tokens.size)
        return PlanSize(
            (int(self.run_counts.sum()), "paths", is_plain), (self.run_counts.size, keys, *longest)
        )

    def pad(self, num_tokens: int) -> PathPlan:
        """The same with padding at the end, up to this many tokens, in runs no longer than the others."""
        count, longest = int(self.run_counts.sum()), int(self.run_counts.max())
        if num_tokens == count:
            return self
        starts = np.arange(count, num_tokens, longest)
        more = np.minimum(longest, num_tokens - starts)
        runs, paths = (np.append(part, more) for part in (self.run_counts, self.path_counts))
        return PathPlan(runs, paths, np.append(self.key_tokens, np.arange(count, num_tokens)))


def supports_paths(query: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions) -> bool:
    """Whether flash attention supports these tensors and the tree's paths are short enough to gather."""
    size = query.shape[-1]
    is_half = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    if not is_half or size != value.shape[-1] or size > 256 or size % 8 or how.softcap is not None:
        return False
    if how.window is not None and layout.max_depth >= how.window:
        return False
    if "path plan" not in layout.cache:
        limit = find_key_limit(query.shape[1], value.shape[1])
        layout.cache["path plan"] = plan_paths(layout, limit) if find_spec("triton") is not None else None
    return layout.cache["path plan"] is not None


def path_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out."""
    if "paths" not in layout.cache:
        plan = layout.cache["path plan"]
        layout.cache["paths"] = Paths(plan.size, layout.device).fill(plan)
    output: Tensor = _PathAttention.apply(query, key, value, layout.cache["paths"], how.scaling)  # type: ignore[no-untyped-call]
    return output


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, paths: Paths, scaling: float) -> Tensor:
        rows, *sides = (side[0].transpose(0, 1) for side in (query, key, value))
        output, log_sums, *state = torch.ops.aten._flash_attention_forward(
            rows, *_gather_keys(sides, paths), *_list_segments(paths), 0.0, True, False, scale=scaling
        )
        ctx.save_for_backward(rows, *sides, output, log_sums, *state[:2])
        ctx.paths, ctx.scaling = paths, scaling
        return output[None]  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        rows, key, value, output, log_sums, *state = ctx.saved_tensors
        grads = torch.ops.aten._flash_attention_backward(
            grad_output[0].contiguous(),
            rows,
            *_gather_keys([key, value], ctx.paths),
            output,
            log_sums,
            *_list_segments(ctx.paths),
            0.0,
            True,
            *state,
            scale=ctx.scaling,
        )
        key_grads, value_grads = grads[1:3]
        if ctx.paths.key_tokens is not None:
            from stepwell.packing.copies_cuda import sum_copies

            copies = ctx.paths.copies, ctx.paths.copy_starts
            key_grads, value_grads = sum_copies(key_grads, value_grads, *copies)
        by_head = [grad.transpose(0, 1)[None] for grad in (grads[0], key_grads, value_grads)]
        return *by_head, None, None


def _gather_keys(sides: list[Tensor], paths: Paths) -> list[Tensor]:
    if paths.key_tokens is None:
        return sides
    return [side.index_select(0, paths.key_tokens) for side in sides]


def _list_segments(paths: Paths) -> tuple[Tensor, Tensor, int, int]:
    return paths.row_starts, paths.key_starts, paths.longest_run, paths.longest_path


def plan_paths(layout: TreeLayout, most_keys: float | None = None) -> PathPlan | None:
    """The layout's paths, or None if they hold more than this many keys per token."""
    parts = [[*ancestors, (start, stop)] for start, stop, ancestors in layout.runs]
    last = layout.runs[-1][1]
    if layout.num_tokens > last:
        parts.append([(last, layout.num_tokens)])  # padding is its own run
    run_counts = np.array([ranges[-1][1] - ranges[-1][0] for ranges in parts])
    path_counts = np.array([sum(stop - start for start, stop in ranges) for ranges in parts])
    limit = MOST_KEYS if most_keys is None else most_keys
    if path_counts.sum() > limit * layout.num_tokens or run_counts.max() == 1:
        return None  # (flash attention lays out single rows differently)
    tokens = np.arange(layout.num_tokens, dtype=np.int32)
    key_tokens = np.concatenate([tokens[start:stop] for ranges in parts for start, stop in ranges])
    return PathPlan(run_counts, path_counts, key_tokens)
