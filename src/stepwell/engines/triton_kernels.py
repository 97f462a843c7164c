"""Triton kernels for decoding and prefill on CUDA, over slot storage.

Every kernel has a plain-torch counterpart that tests compare it with:

| here | does | counterpart |
|---|---|---|
| `rotate_and_store` | norm and rotate heads, write keys and values to their slots | `forward.LlamaOps` |
| `decode_attention` | one query token per row over its slot's history | `attention.DecodePlan` |
| `prefill_attention` | runs of query tokens over their slots | `attention.PrefillPlan` |
| `rms_norm`, `silu_mul` | the rest of a layer | `forward.LlamaOps` |

Decoding reads only the used length of each slot. It keeps all query heads of one key head in
one program, so that keys are read once. It takes lengths from device memory, so that a
captured graph serves sequences of any length. With few rows, the history is split over
programs and a second kernel merges the parts.

Sums are in float32; float32 products are exact (no TF32). Import this module only where
Triton is installed: it is not a dependency on machines without a GPU. The kernel that draws
tokens is in `triton_sampling.py`.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl

NEGATIVE = tl.constexpr(float("-inf"))


@triton.jit
def _cap_scores(scores, softcap, HAS_SOFTCAP: tl.constexpr):
    if HAS_SOFTCAP:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which stays finite at both ends
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
    return scores


@triton.jit
def _decode_kernel(
    query_ptr, key_ptr, value_ptr, slot_ptr, position_ptr, out_ptr, part_ptr, top_ptr, sum_ptr,
    scaling, window, softcap,
    key_slot, key_head, key_pos, key_dim, value_slot, value_head, value_pos, value_dim,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(1) * GROUP
    slot = tl.load(slot_ptr + row)
    length = tl.load(position_ptr + row).to(tl.int32) + 1
    first = length * 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - first, BLOCK), SPLITS) * BLOCK
    start = first + split * share
    end = tl.minimum(start + share, length)

    g, d = tl.arange(0, GROUP_PAD), tl.arange(0, DIM_PAD)
    rows = (row * num_heads + head * GROUP + g).to(tl.int64)
    real = (g < GROUP)[:, None] & (d < DIM)[None, :]
    query = tl.load(query_ptr + rows[:, None] * DIM + d[None, :], mask=real, other=0.0)
    keys = key_ptr + slot * key_slot + head * key_head
    values = value_ptr + slot * value_slot + head * value_head
    top = tl.full([GROUP_PAD], NEGATIVE, tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for at in range(start, end, BLOCK):
        n = at + tl.arange(0, BLOCK)
        seen = (n < end)[:, None] & (d < DIM)[None, :]
        key = tl.load(keys + n[:, None] * key_pos + d[None, :] * key_dim, mask=seen, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scaling
        scores = _cap_scores(scores, softcap, HAS_SOFTCAP)
        scores = tl.where((n < end)[None, :], scores, NEGATIVE)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        value = tl.load(values + n[:, None] * value_pos + d[None, :] * value_dim, mask=seen, other=0.0)
        acc = acc * fade[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * fade + tl.sum(weights, 1)
        top = higher

    if SPLITS == 1:
        tl.store(out_ptr + rows[:, None] * DIM + d[None, :], acc / total[:, None], mask=real)
    else:
        parts = rows * SPLITS + split
        tl.store(part_ptr + parts[:, None] * DIM + d[None, :], acc, mask=real)
        tl.store(top_ptr + parts, top, mask=g < GROUP)
        tl.store(sum_ptr + parts, total, mask=g < GROUP)


@triton.jit
def _merge_kernel(
    part_ptr, top_ptr, sum_ptr, out_ptr,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, DIM_PAD)
    top = tl.load(top_ptr + row * SPLITS + s)
    total = tl.load(sum_ptr + row * SPLITS + s)
    part = tl.load(
        part_ptr + (row * SPLITS + s)[:, None] * DIM + d[None, :], mask=(d < DIM)[None, :], other=0.0
    )
    weights = tl.exp(top - tl.max(top, 0))  # an empty split has top -inf and counts for nothing
    merged = tl.sum(part * weights[:, None], 0) / tl.sum(total * weights, 0)
    tl.store(out_ptr + row * DIM + d, merged, mask=d < DIM)


def choose_num_splits(num_rows: int, num_kv_heads: int, num_processors: int) -> int:
    """Choose how many programs share the history: a power of two, enough to fill the GPU."""
    return min(16, triton.next_power_of_2(triton.cdiv(num_processors, num_rows * num_kv_heads)))


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    splits: int,
) -> torch.Tensor:
    """Attend: query [B, H, D] over storage [slots, K, length, D], positions 0..positions[b] -> [B, H, D]."""
    num_rows, num_heads, dim = query.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    query = query.contiguous()
    out = torch.empty_like(query)
    scratch = (num_rows * num_heads * splits) if splits > 1 else 1
    part = torch.empty(scratch * dim, dtype=torch.float32, device=query.device)
    top, total = torch.empty(2, scratch, dtype=torch.float32, device=query.device)
    dim_pad = max(16, triton.next_power_of_2(dim))
    _decode_kernel[(num_rows, num_kv_heads, splits)](
        query, keys, values, slots, positions, out, part, top, total,
        scaling, window or 0, softcap or 0.0, *keys.stride(), *values.stride(),
        GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)), DIM=dim, DIM_PAD=dim_pad,
        BLOCK=64 if dim_pad <= 128 else 32, SPLITS=splits,
        HAS_WINDOW=window is not None, HAS_SOFTCAP=softcap is not None,
        num_warps=4, num_stages=3 if dim_pad <= 64 else 2,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(num_rows * num_heads,)](
            part, top, total, out, DIM=dim, DIM_PAD=dim_pad, SPLITS=splits, num_warps=2
        )
    return out


@triton.jit
def _prefill_kernel(
    query_ptr, key_ptr, value_ptr, slot_ptr, position_ptr, token_ptr, count_ptr, out_ptr,
    scaling, window, softcap,
    key_slot, key_head, key_pos, key_dim, value_slot, value_head, value_pos, value_dim,
    GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    num_heads = tl.num_programs(1)
    slot = tl.load(slot_ptr + tile)
    position = tl.load(position_ptr + tile).to(tl.int32)
    token = tl.load(token_ptr + tile)
    count = tl.load(count_ptr + tile).to(tl.int32)
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, DIM_PAD)
    real = (m < count)[:, None] & (d < DIM)[None, :]
    rows = ((token + m) * num_heads + head).to(tl.int64)
    query = tl.load(query_ptr + rows[:, None] * DIM + d[None, :], mask=real, other=0.0)
    places = position + m
    end = position + count
    begin = position * 0
    if HAS_WINDOW:
        begin = tl.maximum(position - window + 1, 0) // BLOCK_N * BLOCK_N
    keys = key_ptr + slot * key_slot + head // GROUP * key_head
    values = value_ptr + slot * value_slot + head // GROUP * value_head
    top = tl.full([BLOCK_M], NEGATIVE, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    for at in range(begin, end, BLOCK_N):
        n = at + tl.arange(0, BLOCK_N)
        there = (n < end)[:, None] & (d < DIM)[None, :]
        key = tl.load(keys + n[:, None] * key_pos + d[None, :] * key_dim, mask=there, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scaling
        scores = _cap_scores(scores, softcap, HAS_SOFTCAP)
        seen = n[None, :] <= places[:, None]
        if HAS_WINDOW:
            seen = seen & (n[None, :] > places[:, None] - window)
        scores = tl.where(seen, scores, NEGATIVE)
        higher = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(higher == NEGATIVE, 0.0, higher)  # a row may see nothing of this block
        weights = tl.exp(scores - safe[:, None])
        fade = tl.exp(top - safe)
        value = tl.load(values + n[:, None] * value_pos + d[None, :] * value_dim, mask=there, other=0.0)
        acc = acc * fade[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * fade + tl.sum(weights, 1)
        top = higher
    total = tl.where(total > 0.0, total, 1.0)  # padding rows
    tl.store(out_ptr + rows[:, None] * DIM + d[None, :], acc / total[:, None], mask=real)


PREFILL_TILE = 64


def prefill_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend: query [T, H, D] in tiles (slot, position, place in the flat list, count <= PREFILL_TILE)."""
    _, num_heads, dim = query.shape
    query = query.contiguous()
    out = torch.empty_like(query)
    dim_pad = max(16, triton.next_power_of_2(dim))
    _prefill_kernel[(len(tiles[0]), num_heads)](
        query, keys, values, *tiles, out,
        scaling, window or 0, softcap or 0.0, *keys.stride(), *values.stride(),
        GROUP=num_heads // keys.shape[1], DIM=dim, DIM_PAD=dim_pad,
        BLOCK_M=PREFILL_TILE, BLOCK_N=64 if dim_pad <= 128 else 32,
        HAS_WINDOW=window is not None, HAS_SOFTCAP=softcap is not None,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_kernel(
    qkv_ptr, norm_ptr, cos_ptr, sin_ptr, slot_ptr, position_ptr, query_ptr, key_ptr, value_ptr, eps,
    key_slot, key_head, key_pos, key_dim, value_slot, value_head, value_pos, value_dim,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    HAS_NORM: tl.constexpr, WANT_QUERY: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if not WANT_QUERY:
        head += HEADS
    d = tl.arange(0, HALF_PAD)
    real = d < HALF
    slot = tl.load(slot_ptr + token)
    position = tl.load(position_ptr + token)
    source = qkv_ptr + (token * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF)
    low = tl.load(source + d, mask=real, other=0.0).to(tl.float32)
    high = tl.load(source + HALF + d, mask=real, other=0.0).to(tl.float32)
    if head >= HEADS + KV_HEADS:
        target = value_ptr + slot * value_slot + (head - HEADS - KV_HEADS) * value_head + position * value_pos
        tl.store(target + d * value_dim, low, mask=real)
        tl.store(target + (HALF + d) * value_dim, high, mask=real)
    else:
        if HAS_NORM:
            scale = tl.rsqrt(tl.sum(low * low + high * high, 0) / (2 * HALF) + eps)
            low = low * scale * tl.load(norm_ptr + head * 2 * HALF + d, mask=real, other=0.0).to(tl.float32)
            norm_high = tl.load(norm_ptr + head * 2 * HALF + HALF + d, mask=real, other=0.0)
            high = high * scale * norm_high.to(tl.float32)
        table = position * 2 * HALF
        cos_low = tl.load(cos_ptr + table + d, mask=real, other=0.0).to(tl.float32)
        cos_high = tl.load(cos_ptr + table + HALF + d, mask=real, other=0.0).to(tl.float32)
        sin_low = tl.load(sin_ptr + table + d, mask=real, other=0.0).to(tl.float32)
        sin_high = tl.load(sin_ptr + table + HALF + d, mask=real, other=0.0).to(tl.float32)
        turned_low = low * cos_low - high * sin_low
        turned_high = high * cos_high + low * sin_high
        if head < HEADS:
            goal = query_ptr + (token * HEADS + head) * (2 * HALF)
            tl.store(goal + d, turned_low, mask=real)
            tl.store(goal + HALF + d, turned_high, mask=real)
        else:
            place = key_ptr + slot * key_slot + (head - HEADS) * key_head + position * key_pos
            tl.store(place + d * key_dim, turned_low, mask=real)
            tl.store(place + (HALF + d) * key_dim, turned_high, mask=real)


def rotate_and_store(
    qkv: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_heads: int,
    want_query: bool,
) -> torch.Tensor:
    """Rotate the heads of qkv [T, H + 2K, D]; keys and values go to storage, queries are returned."""
    num_tokens, all_heads, dim = qkv.shape
    query = qkv.new_empty(num_tokens, num_heads, dim)
    programs = all_heads if want_query else all_heads - num_heads
    _rotate_kernel[(num_tokens, programs)](
        qkv.contiguous(), qkv if norm is None else norm, cos, sin, slots, positions, query, keys, values, eps,
        *keys.stride(), *values.stride(),
        HEADS=num_heads, KV_HEADS=keys.shape[1], HALF=dim // 2, HALF_PAD=triton.next_power_of_2(dim // 2),
        HAS_NORM=norm is not None, WANT_QUERY=want_query, num_warps=1,
    )  # fmt: skip
    return query


@triton.jit
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DIM_PAD)
    x = tl.load(x_ptr + row * DIM + d, mask=d < DIM, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + d, mask=d < DIM, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / DIM + eps)
    tl.store(out_ptr + row * DIM + d, x * scale * weight, mask=d < DIM)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute the root-mean-square norm of the rows of a contiguous [T, D]."""
    x = x.contiguous()
    out = torch.empty_like(x)
    pad = triton.next_power_of_2(x.shape[1])
    warps = 4 if pad <= 2048 else 8
    _rms_norm_kernel[(len(x),)](x, weight, out, eps, DIM=x.shape[1], DIM_PAD=pad, num_warps=warps)
    return out


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up_ptr + row * 2 * width + d, mask=d < width, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * width + width + d, mask=d < width, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + d, gate / (1.0 + tl.exp(-gate)) * up, mask=d < width)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Compute silu(gate) * up of a contiguous [T, 2W] -> [T, W]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _silu_mul_kernel[(rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block, num_warps=4)
    return out
