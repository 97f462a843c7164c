"""Tree attention kernels against dense masked attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from torch import Tensor

from stepwell.core import Step
from stepwell.packing import (
    TreeLayout,
    blockwise,
    flex,
    pack,
    paths,
    segments,
    segments_cpu,
    segments_cuda,
    tree_attention,
)
from stepwell.packing.blockwise import blockwise_attention
from stepwell.packing.kernel_inputs import ScoreOptions


def layout_of(steps: list[Step], device: str = "cpu", *, padded: bool = False) -> TreeLayout:
    tree = pack(steps).microbatches[0].tree
    assert tree is not None
    return TreeLayout(tree, torch.device(device), flex.round_up_length(tree.num_tokens) if padded else None)


def dense_mask(layout: TreeLayout, window: int | None) -> Tensor:
    """[T, T], from the definition: ancestors and itself, at most window - 1 levels up."""
    places = np.arange(layout.num_tokens)
    sees = (places[None, :] <= places[:, None]) & (places[:, None] < layout.ends[None, :])
    if window is not None:
        sees &= layout.depths[:, None] - layout.depths[None, :] < window
    return torch.from_numpy(sees)


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    group = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(group, 1).mT * how.scaling
    if how.softcap is not None:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    scores = scores.masked_fill(~dense_mask(layout, how.window).to(scores.device), float("-inf"))
    return (scores.softmax(-1) @ value.repeat_interleave(group, 1)).transpose(1, 2)


def random_inputs(
    layout: TreeLayout,
    heads: tuple[int, int],
    size: int,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> list[Tensor]:
    """Query, key, value laid out as models lay them out, and a gradient for the output."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        shape = (1, layout.num_tokens, count, size)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)

    return [draw(count).transpose(1, 2).requires_grad_() for count in (heads[0], heads[1], heads[1])] + [
        draw(heads[0])
    ]


def outputs_and_gradients(
    attend, inputs: list[Tensor], layout: TreeLayout, how: ScoreOptions
) -> list[Tensor]:
    *sides, outer = inputs
    output = attend(*sides, layout, how)
    return [output.detach(), *torch.autograd.grad(output, sides, outer)]


def random_steps(seed: int, count: int = 12, longest: int = 150) -> list[Step]:
    """A bushy tree with long and short branches."""
    draw = np.random.default_rng(seed)
    known = [draw.integers(0, 9, size=3)]
    for _ in range(count):
        base = known[draw.integers(len(known))]
        cut = base[: draw.integers(1, base.size + 1)]
        known.append(np.concatenate([cut, draw.integers(0, 9, size=draw.integers(1, longest))]))
    return [Step.from_tokens(ids, []) for ids in known[1:]]


SCORINGS = {
    "plain": ScoreOptions(0.3, None, None),
    "window": ScoreOptions(0.3, 8, None),
    "wide window": ScoreOptions(0.3, 100, None),
    "softcap": ScoreOptions(1.5, None, 2.0),
    "window and softcap": ScoreOptions(1.5, 5, 2.0),
}


def attend_in_segments(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    backend = segments.find_backend(query, value, layout, how)
    assert backend is (segments_cuda if query.is_cuda else segments_cpu)
    return segments.segment_attention(query, key, value, layout, how, backend)


@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize("heads", [(4, 2), pytest.param((3, 3), marks=pytest.mark.slow), (6, 1)])
def test_blocks_of_rows_equal_dense_attention_and_its_gradients(name, heads, monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "ROWS", 24)  # several blocks per run
    layout, how = layout_of(random_steps(1)), SCORINGS[name]
    inputs = random_inputs(layout, heads, 8)
    expected = outputs_and_gradients(dense_attention, inputs, layout, how)
    for ours, theirs in zip(
        outputs_and_gradients(blockwise_attention, inputs, layout, how), expected, strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-12 * theirs.abs().max()


@pytest.mark.parametrize("block_rows", [2, 12, segments_cpu.BLOCK_ROWS])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (6, 1)])
def test_segments_equal_dense_attention_and_its_gradients(block_rows, seed, heads, monkeypatch) -> None:
    monkeypatch.setattr(segments_cpu, "BLOCK_ROWS", block_rows)
    layout = layout_of(random_steps(seed, longest=40), padded=True)
    assert len(layout.levels) > 1
    how = ScoreOptions(0.3, layout.max_depth + 1, None)  # a window that cuts nothing
    inputs, count = random_inputs(layout, heads, 8), layout.tree.num_tokens
    inputs[-1][:, count:] = 0  # nobody reads padding
    ours = outputs_and_gradients(attend_in_segments, inputs, layout, how)
    theirs = outputs_and_gradients(dense_attention, inputs, layout, how)
    assert (ours[0] - theirs[0])[:, :count].abs().max() < 1e-12 * theirs[0].abs().max()
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert (a - b).abs().max() < 1e-12 * b.abs().max()


def test_blocks_cover_each_causal_pair_of_a_segment_once() -> None:
    layout = layout_of(
        [Step.from_tokens(range(700), []), Step.from_tokens([*range(100), *range(1, 301)], [])]
    )
    own, *_ = segments._build_pieces(layout)
    assert own.row_counts == (100, 300, 600)
    blocks = sorted(segments_cpu._iterate_blocks(own), key=lambda block: (block.rows.start, block.first))
    assert [(b.rows.start, b.first, b.last, b.num_keys, b.is_last) for b in blocks] == [
        (0, 0, 100, 100, True),
        (100, 0, 192, 192, False),
        (100, 192, 300, 300, True),
        (400, 0, 192, 192, False),
        (400, 192, 384, 384, False),
        (400, 384, 600, 600, True),  # too few rows would be left for one more
    ]


def path_attention_in_full(query: Tensor, key: Tensor, value: Tensor, table: paths.Paths) -> Tensor:
    """What flash attention does with a table of paths: each run's end is its last key's place."""
    group, outputs = query.shape[1] // key.shape[1], []
    for run in range(table.row_starts.numel() - 1):
        rows = slice(*table.row_starts[run : run + 2].tolist())
        seen = table.key_tokens[slice(*table.key_starts[run : run + 2].tolist())].long()
        keys, values = (side[:, :, seen].repeat_interleave(group, 1) for side in (key, value))
        scores = query[:, :, rows] @ keys.mT * 0.3
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(seen.numel() - scores.shape[-2] + 1)
        outputs.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values)
    return torch.cat(outputs, 2).transpose(1, 2)


def copy_paths(layout: TreeLayout) -> paths.Paths:
    plan = paths.plan_paths(layout)
    assert plan is not None
    return paths.Paths(plan.size, layout.device).fill(plan)


def test_causal_attention_over_paths_is_tree_attention(monkeypatch) -> None:
    monkeypatch.setattr(paths, "MOST_KEYS", 99)
    layout = layout_of(random_steps(1), padded=True)
    table = copy_paths(layout)
    *sides, _ = random_inputs(layout, (4, 2), 8)
    theirs = dense_attention(*sides, layout, SCORINGS["plain"])
    count = layout.tree.num_tokens
    ours = path_attention_in_full(*sides, table)
    assert (ours - theirs)[:, :count].abs().max() < 1e-12 * theirs.abs().max()
    for token in range(layout.num_tokens):
        copies = table.copies[slice(*table.copy_starts[token : token + 2].tolist())]
        assert (table.key_tokens[copies] == token).all()
    assert table.copy_starts[-1] == table.copies.numel() == table.key_tokens.numel()


def test_short_runs_below_a_long_path_are_not_gathered() -> None:
    long_runs = [Step.from_tokens(range(50), [token] * 60) for token in (51, 52, 53)]
    short_runs = [Step.from_tokens(range(50), [token] * 6) for token in (51, 52, 53)]
    plan = paths.plan_paths(layout_of(long_runs))
    assert plan is not None and plan.size.room == (4, 50 + 3 * 110, 60, 110)
    assert paths.plan_paths(layout_of(short_runs)) is None


@pytest.mark.parametrize("name", ["window", "softcap"])
def test_what_fused_kernels_cannot_score_goes_elsewhere(name) -> None:
    layout = layout_of(random_steps(1))
    query, _, value, _ = random_inputs(layout, (2, 1), 8)
    assert segments.find_backend(query, value, layout, SCORINGS[name]) is None
    assert segments.find_backend(query, value, layout, SCORINGS["plain"]) is segments_cpu


def attend_either_way(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    return tree_attention(
        query, key, value, layout, scaling=how.scaling, window=how.window, softcap=how.softcap
    )


@settings(max_examples=examples(25))
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=10),
    st.one_of(st.none(), st.integers(1, 13)),
)
def test_any_tree_and_window_equals_dense_attention(sequences, window) -> None:
    layout = layout_of([Step.from_tokens(ids, []) for ids in sequences])
    inputs, how = random_inputs(layout, (2, 1), 4), ScoreOptions(0.5, window, None)
    expected = outputs_and_gradients(dense_attention, inputs, layout, how)
    for attend in (blockwise_attention, attend_either_way):
        for ours, theirs in zip(outputs_and_gradients(attend, inputs, layout, how), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_half_precision_scores_are_summed_in_float32() -> None:
    layout, how = layout_of(random_steps(2)), SCORINGS["plain"]
    wide = random_inputs(layout, (2, 1), 16)
    half = [tensor.detach().bfloat16().requires_grad_() for tensor in wide]
    expected = outputs_and_gradients(dense_attention, wide, layout, how)
    for ours, theirs in zip(
        outputs_and_gradients(blockwise_attention, half, layout, how), expected, strict=True
    ):
        assert (ours - theirs).abs().max() < 0.03 * theirs.abs().max()


def test_values_may_be_narrower_than_keys() -> None:
    layout, how = layout_of(random_steps(3)), SCORINGS["plain"]
    query, key, value, outer = random_inputs(layout, (4, 2), 8)
    inputs = [query, key, value.detach()[..., :5].requires_grad_(), outer[..., :5]]
    ours = outputs_and_gradients(blockwise_attention, inputs, layout, how)
    theirs = outputs_and_gradients(dense_attention, inputs, layout, how)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_siblings_on_one_prompt_are_one_level() -> None:
    steps = [Step.from_tokens([1, 2, 3], [token, 5]) for token in (6, 7, 8)]
    (level,) = layout_of(steps).levels
    assert (level.rows, level.keys) == (((3, 9),), ((0, 3),))


@pytest.mark.parametrize("window", [None, 1, 40, 130, 300])
def test_block_kinds_agree_with_the_dense_mask(window) -> None:
    layout = layout_of(random_steps(4, count=14), padded=True)
    some, full = flex.classify_blocks(layout.ends, layout.depths, window)
    mask = dense_mask(layout, window).numpy()
    size = layout.num_tokens // flex.BLOCK
    blocks = mask.reshape(size, flex.BLOCK, size, flex.BLOCK)
    assert np.array_equal(full, blocks.all((1, 3)))
    assert (some >= blocks.any((1, 3))).all()
    if window is None:
        assert np.array_equal(some, blocks.any((1, 3)))


def test_block_mask_lists_exactly_the_blocks_with_work() -> None:
    layout = layout_of(random_steps(4, count=14), padded=True)
    mask = flex.build_block_mask(layout, None)
    some, full = flex.classify_blocks(layout.ends, layout.depths, None)
    assert torch.equal(mask.to_dense()[0, 0].bool(), torch.from_numpy(some))
    assert torch.equal(mask.full_kv_num_blocks[0, 0].long(), torch.from_numpy(full.sum(1)))
    sees = mask.mask_mod(
        0, 0, torch.arange(layout.num_tokens)[:, None], torch.arange(layout.num_tokens)[None, :]
    )
    assert torch.equal(sees, dense_mask(layout, None))


@pytest.mark.gpu
@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_attention_equals_dense_attention_on_the_gpu(name, dtype) -> None:
    tolerance = 1e-4 if dtype is torch.float32 else 0.03
    for seed in (1, 2, 3):  # three lengths: a static kernel, then one for any length
        layout = layout_of(random_steps(seed, count=10 + 5 * seed), "cuda", padded=True)
        inputs = random_inputs(layout, (6, 2), 64, dtype, "cuda")
        assert flex.can_use_flex(inputs[0])
        wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
        expected = outputs_and_gradients(dense_attention, wide, layout, SCORINGS[name])
        for ours, theirs in zip(
            outputs_and_gradients(flex.flex_tree_attention, inputs, layout, SCORINGS[name]),
            expected,
            strict=True,
        ):
            assert (ours - theirs).abs().max() < tolerance * theirs.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_flash_segments_equal_dense_attention_on_the_gpu(seed, monkeypatch) -> None:
    monkeypatch.setattr(segments_cuda, "MOST_LEVELS", 99)
    layout, how = layout_of(random_steps(seed), "cuda", padded=True), SCORINGS["plain"]
    inputs = random_inputs(layout, (6, 2), 64, torch.bfloat16, "cuda")
    count = layout.tree.num_tokens
    inputs[-1][:, count:] = 0
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    ours = outputs_and_gradients(attend_in_segments, inputs, layout, how)
    theirs = outputs_and_gradients(dense_attention, wide, layout, how)
    assert (ours[0] - theirs[0])[:, :count].abs().max() < 0.03 * theirs[0].abs().max()
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert (a - b).abs().max() < 0.03 * b.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("heads", [(6, 2), (3, 3)])
def test_flash_over_paths_equals_dense_attention_on_the_gpu(seed, heads, monkeypatch) -> None:
    monkeypatch.setattr(paths, "MOST_KEYS", 99)
    layout, how = layout_of(random_steps(seed), "cuda", padded=True), SCORINGS["plain"]
    inputs = random_inputs(layout, heads, 64, torch.bfloat16, "cuda")
    assert paths.supports_paths(inputs[0], inputs[2], layout, how)
    count = layout.tree.num_tokens
    inputs[-1][:, count:] = 0
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    ours = outputs_and_gradients(paths.path_attention, inputs, layout, how)
    theirs = outputs_and_gradients(dense_attention, wide, layout, how)
    assert (ours[0] - theirs[0])[:, :count].abs().max() < 0.01 * theirs[0].abs().max()
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert (a - b).abs().max() < 0.02 * b.abs().max()


def test_grouped_heads_afford_more_gathered_keys() -> None:
    prompt = np.arange(90)
    turns = [Step.from_tokens(np.append(prompt, np.full(10, 1000 + n)), []) for n in range(100)]
    layout = layout_of(turns)  # 1,090 tokens; 100 paths of 100 keys are about nine times as many
    alone, grouped = paths.find_key_limit(3, 3), paths.find_key_limit(9, 3)
    assert paths.plan_paths(layout, alone) is None
    found = paths.plan_paths(layout, grouped)
    assert found is not None and found.size.room[1] == 90 + 100 * 100


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["window", "softcap"])
def test_windows_and_soft_caps_are_not_for_paths_on_the_gpu(name) -> None:
    layout = layout_of(random_steps(1, count=1), "cuda", padded=True)
    query, _, value, _ = random_inputs(layout, (2, 1), 64, torch.bfloat16, "cuda")
    assert paths.supports_paths(query, value, layout, SCORINGS["plain"])
    assert not paths.supports_paths(query, value, layout, SCORINGS[name])
    assert not paths.supports_paths(query.float(), value.float(), layout, SCORINGS["plain"])


@pytest.mark.gpu
def test_float64_on_the_gpu_takes_the_exact_kernel() -> None:
    layout = layout_of(random_steps(5), "cuda", padded=True)
    *sides, _ = random_inputs(layout, (4, 2), 16, torch.float64, "cuda")
    expected = dense_attention(*sides, layout, SCORINGS["plain"])[:, : layout.tree.num_tokens]
    output = tree_attention(*sides, layout, scaling=0.3)[:, : layout.tree.num_tokens]
    assert (output - expected).abs().max() < 1e-12 * expected.abs().max()
