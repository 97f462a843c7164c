"""Exact tree attention in tiles, for every device, dtype, window and soft cap.

The tree is processed by groups (sibling runs of one length, see `layout.py`). For each group, the kernel in
`tiles.py` gets the group's queries, the keys of its ancestors and its own keys. It returns outputs and log
sums (per query and head, the logarithm of the softmax's denominator). The backward pass recomputes the
attention weights from them instead of storing the weights. The driver here adds the gradients of shared
ancestors in place.

Shapes: queries and outputs are [key heads, runs, heads per key head, length, D], so that grouped heads share
their keys; ancestor keys are [key heads, depth, D]; a group's own keys are [key heads, runs, length, D].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepwell.packing import tiles
from stepwell.packing.kernel_inputs import RunKeys, ScoreOptions
from stepwell.packing.layout import EqualSpans, TreeLayout


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out.

    On a CPU, half precision is computed in float32, because most CPUs have no half-precision units.
    """
    if query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16):
        wide = blockwise_attention(query.float(), key.float(), value.float(), layout, how)
        return wide.to(query.dtype)
    output: Tensor = _BlockwiseAttention.apply(query, key, value, layout, how)  # type: ignore[no-untyped-call]
    return output


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
    ) -> Tensor:
        output = query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])
        log_sums = []
        for group in layout.run_groups:
            queries = _stack_rows(query[0], key.shape[1], group)
            part, log_sum = tiles.attend_forward(queries, _gather_keys(key[0], value[0], group), how)
            _put_rows(output[0], part, group)
            log_sums.append(log_sum)
        ctx.save_for_backward(query, key, value, output, *log_sums)
        ctx.layout, ctx.how = layout, how
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, *log_sums = ctx.saved_tensors
        heads = key.shape[1]
        sources = (query[0], _transpose_to_heads(output), _transpose_to_heads(grad_output))
        query_grad, key_grad, value_grad = (
            tensor.new_zeros(tensor.shape[2], *tensor.shape[1::2]) for tensor in (query, key, value)
        )
        for group, log_sum in zip(ctx.layout.run_groups, log_sums, strict=True):
            queries, outputs, outers = (_stack_rows(tensor, heads, group) for tensor in sources)
            row_grads, grads = tiles.attend_backward(
                queries, outputs, outers, log_sum, _gather_keys(key[0], value[0], group), ctx.how
            )
            _put_rows(query_grad, row_grads, group)
            _add_keys(key_grad, grads.above_keys, grads.own_keys, group)
            _add_keys(value_grad, grads.above_values, grads.own_values, group)
        return *(grad.unsqueeze(0).transpose(1, 2) for grad in (query_grad, key_grad, value_grad)), None, None


def _transpose_to_heads(rows: Tensor) -> Tensor:
    """Transpose [1, T, heads, D] to [heads, T, D]."""
    return rows[0].transpose(0, 1)


def _stack_rows(tensor: Tensor, num_key_heads: int, group: EqualSpans) -> Tensor:
    """Reshape [heads, T, D] to the group's [key heads, runs, heads per key head, length, D]."""
    stacked = torch.stack([tensor[:, start : start + group.length] for start in group.starts], 1)
    return stacked.view(num_key_heads, -1, *stacked.shape[1:]).transpose(1, 2).contiguous()


def _put_rows(target: Tensor, rows: Tensor, group: EqualSpans) -> None:
    """The reverse of `_stack_rows`: write into [T, heads, D]."""
    for index, start in enumerate(group.starts):
        place = target[start : start + group.length].view(group.length, rows.shape[0], rows.shape[2], -1)
        place.copy_(rows[:, index].permute(2, 0, 1, 3))


def _gather_keys(key: Tensor, value: Tensor, group: EqualSpans) -> RunKeys:
    return RunKeys(*_split_path(key, group), *_split_path(value, group))


def _split_path(tensor: Tensor, group: EqualSpans) -> tuple[Tensor, Tensor]:
    """Split [key heads, T, D] into the keys above the group and its own keys."""
    above = [tensor[:, start:stop] for start, stop in group.ancestors]
    own = torch.stack([tensor[:, start : start + group.length] for start in group.starts], 1)
    if len(above) == 1:
        return above[0], own
    return (torch.cat(above, 1) if above else tensor[:, :0]), own


def _add_keys(target: Tensor, above: Tensor, own: Tensor, group: EqualSpans) -> None:
    """Add gradients with the shapes of `_split_path` to their places in [T, key heads, D]."""
    offset = 0
    for start, stop in group.ancestors:
        target[start:stop] += above[:, offset : offset + stop - start].transpose(0, 1)
        offset += stop - start
    for index, start in enumerate(group.starts):
        target[start : start + group.length] += own[:, index].transpose(0, 1)
