"""Tree attention on CUDA as dense causal attention over whole sequences, for long contexts.

Every leaf's path, from the root to the leaf, is one sequence. Dense kernels for sequences of one length are
the fastest there are (cuDNN's above all), so the tree is unpacked for attention only: sequences are gathered,
attend causally, and every token reads its output from the first sequence that holds it. What siblings share
is attended once per sibling; the tree is refused where that is more than a small part of the work.

Sequences are padded at their ends to a few lengths and batched by powers of two, because a kernel is planned
once per shape. Causal attention never looks at what follows, so padding changes nothing.

Where nothing branches and all lengths are equal, the packed tokens are the sequences: nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.packing.device_copies import NumberTable
from stepwell.packing.kernel_inputs import PlanSize, ScoreOptions
from stepwell.packing.layout import TreeLayout
from stepwell.packing.tree import IntArray

KERNEL = "cudnn"
"""Which kernel: `cudnn`, or `none` for never. On an H200 cuDNN's is 1.35 to 1.5 times as fast as `paths.py`
from 8,000 tokens on, forward and backward; flash attention's is no faster over sequences than over paths."""
SHORTEST = 1024
"""Mean length of sequences from which this pays: on an H200, at 1,408 tokens, an update of 135M gains 6 %."""
MOST_WORK = 1.15
"""The largest number of attended pairs, over those of the tree."""
MOST_TOKENS = 1.5
"""The largest number of gathered tokens per token, because they are kept for the backward pass."""
_STEPS_PER_OCTAVE = 16


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """The sequences of a tree, one after the other, as arrays of the host.

    `groups` are the shapes (sequences, length) of the dense calls.
    `tokens` are their tokens, padding included (None: all tokens of the tree in order). Token t is read at
    `owners[t]`, and no token at `unread`; `places` are those that are not padding.
    """

    num_tokens: int
    groups: tuple[tuple[int, int], ...]
    tokens: IntArray | None
    owners: IntArray
    unread: IntArray
    places: IntArray

    @property
    def size(self) -> PlanSize:
        """Tokens, shapes of the calls, and whether anything is gathered; places that nobody reads."""
        is_plain = self.tokens is None
        return PlanSize((self.num_tokens, "sequences", is_plain, self.groups), (int(self.unread.size),))

    def pad(self, num_tokens: int) -> SequencePlan:
        """The same for a layout with more padding."""
        return replace(self, num_tokens=num_tokens)


class Sequences:
    """A plan on a device. The copies of token t are `copies[copy_starts[t] : copy_starts[t + 1]]`.

    The layout's padding has no copies, and is read where nothing else is.
    """

    def __init__(self, size: PlanSize, device: torch.device) -> None:
        count, _, is_plain, self.groups = size.kind
        self.num_places = places = sum(number * length for number, length in self.groups)
        lengths = {"tokens": places, "owners": count, "unread": size.room[0], "copies": places}
        lengths["copy_starts"] = count + 1
        lengths = dict.fromkeys(lengths, 0) if is_plain else lengths
        self._table = table = NumberTable(lengths, device, torch.int64)
        self.tokens = None if is_plain else table["tokens"]
        self.owners, self.unread = table["owners"], table["unread"]
        self.copies, self.copy_starts = table["copies"], table["copy_starts"]

    def fill(self, plan: SequencePlan) -> Sequences:
        """Take the sequences of a plan over as many tokens."""
        if plan.tokens is not None:
            seen = plan.tokens[plan.places]
            starts = np.concatenate([[0], np.cumsum(np.bincount(seen, minlength=plan.num_tokens))])
            copies = plan.places[np.argsort(seen, kind="stable")]
            owners = plan.owners[: plan.num_tokens]
            found = {"tokens": plan.tokens, "owners": owners, "unread": plan.unread}
            self._table.fill(found | {"copies": copies, "copy_starts": starts})
        return self


def supports_sequences(query: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions) -> bool:
    """Whether dense kernels support these tensors, and the tree is long and thin enough to benefit."""
    if KERNEL == "none" or not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    size = query.shape[-1]
    if size != value.shape[-1] or size > 128 or size % 8 or how.softcap is not None:
        return False
    if how.window is not None and layout.max_depth >= how.window:
        return False
    is_hopper = torch.cuda.get_device_capability(query.device)[0] == 9
    return is_hopper and find_sequences(layout) is not None


def find_sequences(layout: TreeLayout) -> SequencePlan | None:
    """The layout's sequences, kept with it; None if they are short or share too much."""
    if "sequence plan" not in layout.cache:
        layout.cache["sequence plan"] = _plan_sequences(layout)
    found: SequencePlan | None = layout.cache["sequence plan"]
    return found


def sequence_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out."""
    kernel = KERNEL if query.is_cuda else "cpu"
    if "sequences" not in layout.cache:
        plan = find_sequences(layout)
        assert plan is not None
        layout.cache["sequences"] = Sequences(plan.size, layout.device).fill(plan)
    output: Tensor = _SequenceAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, layout.cache["sequences"], how.scaling, kernel
    )
    return output


class _SequenceAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Sequences, scaling: float, kernel: str
    ) -> Tensor:
        sides = [_gather(side[0].transpose(0, 1), plan) for side in (query, key, value)]
        outputs, states = [], []
        for parts in _iterate_groups(sides, plan):
            output, *state = _attend(parts, scaling, kernel)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
            states.append(state)
        flat = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        result = _read_owned(flat, plan, query.shape[2])
        ctx.save_for_backward(*sides, result, *(item for state in states for item in state))
        ctx.plan, ctx.scaling, ctx.kernel = plan, scaling, kernel
        return result[None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, result, *items = ctx.saved_tensors
        plan: Sequences = ctx.plan
        sides = [query, key, value, _gather(result, plan), _spread_owned(grad_output[0], plan)]
        per_group = len(items) // len(plan.groups)
        found: list[list[Tensor]] = []
        for number, parts in enumerate(_iterate_groups(sides, plan)):
            state = items[number * per_group : (number + 1) * per_group]
            grads = _pull_back(parts, state, ctx.scaling, ctx.kernel)
            found.append([grad.transpose(1, 2).flatten(0, 1) for grad in grads])
        flat = [part[0] if len(part) == 1 else torch.cat(part) for part in zip(*found, strict=True)]
        count = result.shape[0]
        query_grad = _read_owned(flat[0], plan, count)
        key_grad, value_grad = _sum_copies(flat[1], flat[2], plan, count)
        by_head = [grad.transpose(0, 1)[None] for grad in (query_grad, key_grad, value_grad)]
        return *by_head, None, None, None


def _gather(side: Tensor, plan: Sequences) -> Tensor:
    """The tokens [T, heads, D] of all sequences."""
    return side[: plan.num_places] if plan.tokens is None else side.index_select(0, plan.tokens)


def _iterate_groups(sides: list[Tensor], plan: Sequences) -> Iterator[list[Tensor]]:
    """The sides of each dense call, as [sequences, heads, length, D]."""
    start = 0
    for count, length in plan.groups:
        stop = start + count * length
        yield [side[start:stop].view(count, length, *side.shape[1:]).transpose(1, 2) for side in sides]
        start = stop


def _read_owned(flat: Tensor, plan: Sequences, count: int) -> Tensor:
    """The rows of the tokens themselves, [count, heads, D]."""
    if plan.tokens is not None:
        return flat.index_select(0, plan.owners)
    if plan.num_places == count:
        return flat
    return torch.cat([flat, flat.new_zeros(count - plan.num_places, *flat.shape[1:])])


def _spread_owned(grads: Tensor, plan: Sequences) -> Tensor:
    """Gradients of outputs, each at the place it was read from; zero elsewhere."""
    if plan.tokens is None:
        return grads[: plan.num_places].contiguous()
    # few places are not read: a gather of all and a zero for those is half the time of a scatter
    return grads.index_select(0, plan.tokens).index_fill_(0, plan.unread, 0.0)


def _sum_copies(keys: Tensor, values: Tensor, plan: Sequences, count: int) -> tuple[Tensor, Tensor]:
    if plan.tokens is None:
        return _read_owned(keys, plan, count), _read_owned(values, plan, count)
    if keys.is_cuda:
        from stepwell.packing.copies_cuda import sum_copies

        return sum_copies(keys, values, plan.copies, plan.copy_starts)
    owner = torch.arange(count).repeat_interleave(plan.copy_starts.diff().long())
    zeros = [side.new_zeros(count, *side.shape[1:]) for side in (keys, values)]
    key_sum, value_sum = (
        zero.index_add_(0, owner, side[plan.copies[: owner.numel()]])
        for zero, side in zip(zeros, (keys, values), strict=True)
    )
    return key_sum, value_sum


# --- the kernels ------------------------------------------------------------------------


def _attend(sides: list[Tensor], scaling: float, kernel: str) -> list[Tensor]:
    """Causal attention of [batch, heads, length, D]: outputs, log sums, random state (unused)."""
    ops, (query, key, value) = torch.ops.aten, sides
    if kernel == "cpu":
        group = query.shape[1] // key.shape[1]
        wide = (side.repeat_interleave(group, 1) for side in (key, value))
        return [*ops._scaled_dot_product_flash_attention_for_cpu(query, *wide, 0.0, True, scale=scaling)]
    found = ops._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, True, False, scale=scaling
    )
    return [found[0], found[1], found[6], found[7]]


def _pull_back(sides: list[Tensor], state: list[Tensor], scaling: float, kernel: str) -> list[Tensor]:
    """Gradients of query, key and value."""
    query, key, value, output, outer = sides
    log_sums, *random = state
    ops, length = torch.ops.aten, query.shape[2]
    if kernel == "cpu":
        group = query.shape[1] // key.shape[1]
        wide = (side.repeat_interleave(group, 1) for side in (key, value))
        pull = ops._scaled_dot_product_flash_attention_for_cpu_backward
        grads = pull(outer, query, *wide, output, log_sums, 0.0, True, scale=scaling)
        return [grads[0], *(grad.unflatten(1, (-1, group)).sum(2) for grad in grads[1:])]
    rest = (*random, None, None, None, length, length, 0.0, True)
    pull = ops._scaled_dot_product_cudnn_attention_backward
    return list(pull(outer, query, key, value, output, log_sums, *rest, scale=scaling))


# --- the plan ---------------------------------------------------------------------------


def _plan_sequences(layout: TreeLayout) -> SequencePlan | None:
    tree, count = layout.tree, layout.tree.num_tokens
    leaves = [
        (*ancestors, (start, stop))
        for start, stop, ancestors in layout.runs
        if int(tree.subtree_end[stop - 1]) == stop
    ]
    lengths = np.array([sum(stop - start for start, stop in ranges) for ranges in leaves], dtype=np.int64)
    pairs = int((tree.positions + 1).sum())
    if lengths.mean() < SHORTEST or int((lengths * (lengths + 1) // 2).sum()) > MOST_WORK * pairs:
        return None
    order, padded, groups = _pad_lengths(lengths)
    total = int(padded.sum())
    if total > MOST_TOKENS * count:
        return None
    tokens, is_real = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=bool)
    starts = np.concatenate([[0], np.cumsum(padded[order])])
    for place, leaf in enumerate(order.tolist()):
        at, stop = int(starts[place]), int(starts[place] + lengths[leaf])
        tokens[at:stop] = np.concatenate([np.arange(*bounds) for bounds in leaves[leaf]])
        is_real[at:stop] = True
    if total == count and np.array_equal(tokens, np.arange(count)):
        empty = np.zeros(0, dtype=np.int64)
        return SequencePlan(layout.num_tokens, tuple(groups), None, empty, empty, empty)
    if total == count:  # the layout's padding needs places that nobody reads
        groups, tokens = [*groups, (1, 64)], np.append(tokens, np.zeros(64, dtype=np.int64))
        is_real = np.append(is_real, np.zeros(64, dtype=bool))
    places = np.flatnonzero(is_real)
    owners = np.empty(count, dtype=np.int64)
    owners[tokens[places[::-1]]] = places[::-1]  # the first of a token's places is written last
    is_unread = np.ones(tokens.size, dtype=bool)
    is_unread[owners] = False
    unread = np.flatnonzero(is_unread)
    owners = np.append(owners, unread[0])  # for the layout's padding: gradients are zero there
    return SequencePlan(layout.num_tokens, tuple(groups), tokens, owners, unread, places)


def _pad_lengths(lengths: IntArray) -> tuple[IntArray, IntArray, list[tuple[int, int]]]:
    """The order of the sequences, their padded lengths, and the shapes of the calls in that order."""
    padded = np.array([_round_length(length) for length in lengths.tolist()], dtype=np.int64)
    if np.all(lengths == lengths[0]):
        padded = lengths.copy()
        if lengths[0] % 64 == 0:  # equal lengths are one call, whatever their number
            return np.arange(lengths.size), padded, [(int(lengths.size), int(lengths[0]))]
        padded[:] = -(-int(lengths[0]) // 64) * 64
    order = np.argsort(padded, kind="stable")
    groups: list[tuple[int, int]] = []
    for length, count in zip(*np.unique(padded, return_counts=True), strict=True):
        left = int(count)
        while left:
            size = 1 << (left.bit_length() - 1)
            groups.append((size, int(length)))
            left -= size
    return order, padded, groups


def _round_length(length: int) -> int:
    """Up to the next of sixteen lengths per octave, in whole blocks of 64."""
    step = max(64, 1 << max(0, length.bit_length() - 1 - _STEPS_PER_OCTAVE.bit_length() + 1))
    return -(-length // step) * step
