"""A group of runs by the CPU's fused attention: its ancestors and itself as two calls.

All queries of the group against the keys above is one dense call; each run against itself
is a causal one. Their outputs are joined by their log sums, and the fused backward pass,
given the joined output and log sums, yields exactly the gradients of each part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.packing.scoring import Keys, Scoring

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def supports(query: Tensor, value: Tensor) -> bool:
    """Whether the fused kernel takes these tensors."""
    is_wide = query.dtype in (torch.float32, torch.float64)
    return query.device.type == "cpu" and is_wide and query.shape[-1] == value.shape[-1]


def forward(queries: Tensor, keys: Keys, how: Scoring) -> tuple[Tensor, Tensor]:
    """Outputs shaped as the queries, and log sums without the last dimension."""
    output, log_sums = _call(
        _by_run(queries), _own(keys.own_keys, queries), _own(keys.own_values, queries), how
    )
    output, log_sums = output.view(queries.shape), log_sums.view(queries.shape[:-1])
    if keys.above_keys.shape[1] == 0:
        return output, log_sums
    above, above_sums = _call(
        _all_rows(queries), keys.above_keys[:, None], keys.above_values[:, None], how, is_causal=False
    )
    above, above_sums = above.view(queries.shape), above_sums.view(log_sums.shape)
    joined = torch.logaddexp(log_sums, above_sums)
    output.mul_((log_sums - joined).exp_()[..., None])
    return output.addcmul_(above, (above_sums - joined).exp_()[..., None]), joined


def backward(
    queries: Tensor, output: Tensor, grad_output: Tensor, log_sums: Tensor, keys: Keys, how: Scoring
) -> tuple[Tensor, Keys]:
    """Gradients of the queries, and of the keys and values."""
    runs = queries.shape[0] * queries.shape[1]
    query_grad, own_key_grad, own_value_grad = _backward(
        _by_run(grad_output),
        _by_run(queries),
        _own(keys.own_keys, queries),
        _own(keys.own_values, queries),
        _by_run(output),
        log_sums.view(runs, queries.shape[2], -1),
        0.0,
        True,
        scale=how.scaling,
    )
    query_grad = query_grad.reshape(queries.shape)
    own = [grad.sum(1).view(keys.own_keys.shape) for grad in (own_key_grad, own_value_grad)]
    if keys.above_keys.shape[1] == 0:
        return query_grad, Keys(keys.above_keys, own[0], keys.above_values, own[1])
    above_query_grad, above_key_grad, above_value_grad = _backward(
        _all_rows(grad_output),
        _all_rows(queries),
        keys.above_keys[:, None],
        keys.above_values[:, None],
        _all_rows(output),
        log_sums.view(queries.shape[0], 1, -1),
        0.0,
        False,
        scale=how.scaling,
    )
    query_grad += above_query_grad.view(queries.shape)
    return query_grad, Keys(above_key_grad[:, 0], own[0], above_value_grad[:, 0], own[1])


def _call(
    queries: Tensor, keys: Tensor, values: Tensor, how: Scoring, *, is_causal: bool = True
) -> tuple[Tensor, Tensor]:
    output, log_sums = _forward(queries, keys, values, 0.0, is_causal, scale=how.scaling)
    return output, log_sums.contiguous()


def _by_run(rows: Tensor) -> Tensor:
    """Each run and key head an item of the batch: [key heads * runs, heads per key head, length, D]."""
    return rows.flatten(0, 1)


def _all_rows(rows: Tensor) -> Tensor:
    """All rows that share a key head one after another: [key heads, 1, rows, D]."""
    return rows.flatten(1, 3)[:, None]


def _own(keys: Tensor, queries: Tensor) -> Tensor:
    """A run's keys for each of the heads that share them: a view."""
    return keys.flatten(0, 1)[:, None].expand(-1, queries.shape[2], -1, -1)
