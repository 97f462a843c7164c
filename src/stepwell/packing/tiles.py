"""Attention of a group of runs in matrix products, tile by tile, with windows and soft caps.

A tile is a block of queries of some heads with the keys they see. Only the square where a block meets itself
and the corner where a window ends are masked. Keys that are entirely outside a window are skipped. Tiles are
sized to fit a core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from stepwell.packing.kernel_inputs import RunKeys, ScoreOptions

QUERY_BLOCK = 64
"""Queries per tile. Smaller tiles waste less on the masked half of the diagonal square."""
TILE_SCORES = 1 << 18
"""The largest number of scores per tile (if it has more than one head)."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries first .. last of some runs and heads, which see keys low .. high of their path.

    With a `window_offset` of o, row r does not see the first r - o + 1 of these keys.
    """

    batch: slice
    first: int
    last: int
    low: int
    high: int
    window_offset: int | None

    def select_rows(self, tensor: Tensor) -> Tensor:
        """The tile's part of [batch, group, length, D], as [tile batch, group * rows, D]."""
        return tensor[self.batch, :, self.first : self.last].flatten(1, 2)

    def select_keys(self, keys: Tensor) -> Tensor:
        """The tile's part of [batch, path length, D]."""
        return keys[self.batch, self.low : self.high]

    def put_rows(self, target: Tensor, rows: Tensor) -> None:
        """The reverse of `select_rows`: write into [batch, group, length, D]."""
        place = target[self.batch, :, self.first : self.last]
        place.copy_(rows.view(place.shape))


def _iterate_tiles(queries: Tensor, depth: int, window: int | None) -> Iterator[_Tile]:
    batch, group, length = queries.shape[:3]
    for first in range(0, length, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, length)
        low, high, offset = 0, depth + last, None
        if window is not None and high > window:
            low = max(0, depth + first - window + 1)
            offset = window - (depth + first - low)
        together = max(1, TILE_SCORES // (group * (last - first) * (high - low)))
        for start in range(0, batch, together):
            yield _Tile(slice(start, start + together), first, last, low, high, offset)


def attend_forward(queries: Tensor, keys: RunKeys, how: ScoreOptions) -> tuple[Tensor, Tensor]:
    """Outputs in the shape of the queries, and log sums without the last dimension."""
    rows = queries.flatten(0, 1)
    path, values = _join_paths(keys)
    output = rows.new_empty(*rows.shape[:-1], values.shape[-1])
    log_sums = rows.new_empty(*rows.shape[:-1], 1, dtype=_widen_dtype(rows))
    for tile in _iterate_tiles(rows, keys.above_keys.shape[1], how.window):
        scores, _ = _compute_scores(tile.select_rows(rows), tile.select_keys(path), tile, how)
        peak = scores.amax(-1, keepdim=True)
        weights = scores.sub_(peak).exp_()
        total = weights.sum(-1, keepdim=True)
        mixed = torch.bmm(weights.to(values.dtype), tile.select_keys(values))
        tile.put_rows(output, mixed.div_(total))
        tile.put_rows(log_sums, peak.add_(total.log_()))
    return output.view(*queries.shape[:-1], -1), log_sums.view(queries.shape[:-1])


def attend_backward(
    queries: Tensor, output: Tensor, grad_output: Tensor, log_sums: Tensor, keys: RunKeys, how: ScoreOptions
) -> tuple[Tensor, RunKeys]:
    """Gradients of the queries, and of the keys and values."""
    rows, outer = queries.flatten(0, 1), grad_output.flatten(0, 1)
    pull = (grad_output.to(log_sums.dtype) * output).sum(-1, keepdim=True).flatten(0, 1)
    sums = log_sums.flatten(0, 1)[..., None]
    path, values = _join_paths(keys)
    row_grads = torch.empty_like(rows)
    key_grads, value_grads = torch.zeros_like(path.mT), torch.zeros_like(values.mT)
    for tile in _iterate_tiles(rows, keys.above_keys.shape[1], how.window):
        seen = (tile.batch, slice(None), slice(tile.low, tile.high))
        row, out = tile.select_rows(rows), tile.select_rows(outer)
        scores, slope = _compute_scores(row, tile.select_keys(path), tile, how)
        weights = scores.sub_(tile.select_rows(sums)).exp_()
        value_grads[seen].baddbmm_(out.mT, weights.to(out.dtype))
        grads = torch.bmm(out, tile.select_keys(values).mT).to(weights.dtype)
        grads = grads.sub_(tile.select_rows(pull)).mul_(weights)
        grads = (grads if slope is None else grads.mul_(slope)).to(row.dtype)
        key_grads[seen].baddbmm_(row.mT, grads, alpha=how.scaling)
        tile.put_rows(row_grads, torch.bmm(grads, tile.select_keys(path)).mul_(how.scaling))
    above_keys, own_keys = _split_gradients(key_grads, keys.own_keys)
    above_values, own_values = _split_gradients(value_grads, keys.own_values)
    return row_grads.view(queries.shape), RunKeys(above_keys, own_keys, above_values, own_values)


def _compute_scores(
    queries: Tensor, keys: Tensor, tile: _Tile, how: ScoreOptions
) -> tuple[Tensor, Tensor | None]:
    """Masked scores [tile batch, group * rows, keys] in at least float32, and the soft cap's derivative."""
    rows, count = tile.last - tile.first, tile.high - tile.low
    scores = torch.bmm(queries, keys.mT).to(_widen_dtype(queries)).mul_(how.scaling)
    slope = None
    if how.softcap is not None:
        tanh = scores.div_(how.softcap).tanh_()
        slope = 1 - tanh.square()
        scores = tanh.mul_(how.softcap)
    view = scores.view(scores.shape[0], -1, rows, count)
    view[..., count - rows :] += _build_causal_mask(rows, scores.dtype, scores.device)
    if tile.window_offset is not None:
        beyond = torch.ones(rows, min(rows, count), dtype=torch.bool, device=scores.device)
        view[..., : beyond.shape[1]].masked_fill_(beyond.tril_(-tile.window_offset), float("-inf"))
    return scores, slope


def _widen_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


@lru_cache(maxsize=256)
def _build_causal_mask(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """-inf above the diagonal of a square."""
    return torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu_(1)


def _join_paths(keys: RunKeys) -> tuple[Tensor, Tensor]:
    """Keys and values of whole paths: [key heads * runs, depth + length, D]."""
    return _join_path(keys.above_keys, keys.own_keys), _join_path(keys.above_values, keys.own_values)


def _join_path(above: Tensor, own: Tensor) -> Tensor:
    return torch.cat([above[:, None].expand(-1, own.shape[1], -1, -1), own], 2).flatten(0, 1)


def _split_gradients(grads: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Split [key heads * runs, D, path length] into the parts of the ancestors and of the runs."""
    by_run = grads.view(*own.shape[:2], *grads.shape[1:]).mT
    depth = by_run.shape[2] - own.shape[2]
    return by_run[:, :, :depth].sum(1), by_run[:, :, depth:]
