"""Many short episodes under one prompt: small branches moved up, short runs attended to together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.variants import keep_quick

from stepwell.core import Step
from stepwell.packing import TreeLayout, backward, pack, segments_cpu
from stepwell.packing.segments import _build_pieces
from stepwell.packing.tree import merge_short_runs
from stepwell.policies import CausalLMPolicy


def episodes(seed: int, count: int, turns: int = 2) -> list[Step]:
    """Dialogues under one prompt of 40 tokens whose boards have few symbols, so that many begin alike."""
    draw = np.random.default_rng(seed)
    prompt, steps = list(range(100, 140)), []
    for _ in range(count):
        ids = list(prompt)
        for _ in range(turns):
            ids = [*ids, *draw.integers(5, 7, 12).tolist()]
            action = draw.integers(10, 14, int(draw.integers(1, 6))).tolist()
            steps.append(Step.from_tokens(ids, action))
            ids += action
    return steps


def test_a_branch_of_few_tokens_is_moved_up_to_the_one_above() -> None:
    shared, lengths = np.array([0, 45, 40, 42, 70]), np.array([80, 80, 80, 80, 90])
    assert merge_short_runs(shared, lengths, 16).tolist() == [0, 40, 40, 40, 70]


def test_what_goes_on_from_a_whole_sequence_is_never_cut_off() -> None:
    assert merge_short_runs(np.array([0, 4, 6]), np.array([4, 6, 9]), 16).tolist() == [0, 4, 6]


@given(seed=st.integers(0, 10_000), min_run=st.integers(1, 40))
@settings(max_examples=examples(40), deadline=None)
def test_coarser_trees_share_less_and_lose_no_step(seed: int, min_run: int) -> None:
    steps = episodes(seed, 6)
    fine, coarse = pack(steps), pack(steps, min_run=min_run)
    assert fine.num_tokens <= coarse.num_tokens <= coarse.num_step_tokens
    assert coarse.action_lengths == fine.action_lengths
    tree = coarse.microbatches[0].tree
    assert tree is not None
    lengths = [stop - start for start, stop, _ in TreeLayout(tree, torch.device("cpu")).runs]
    assert sum(lengths) == tree.num_tokens


@pytest.mark.parametrize("min_run", keep_quick([1, 16], (16).__eq__))
def test_outputs_and_gradients_do_not_depend_on_how_steps_are_merged(min_run: int) -> None:
    steps = episodes(3, 24)
    results = []
    for packed in (pack(steps[:1]), pack(steps, min_run=min_run)):
        policy = CausalLMPolicy.from_pretrained("tiny-0.3m", critic="shared", dtype="float64")
        if len(packed) == 1:  # every step alone, in place of one batch
            total = 0.0
            for step in steps:
                loss, _, _ = backward(
                    policy, pack([step]), lambda o: (o.logprobs.sum() + o.values.sum(), {}), values=True
                )
                total += float(loss)
        else:
            loss, _, _ = backward(
                policy, packed, lambda o: (o.logprobs.sum() + o.values.sum(), {}), values=True
            )
            total = float(loss)
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        results.append((total, gradient))
    (alone, alone_gradient), (merged, merged_gradient) = results
    assert merged == pytest.approx(alone, rel=1e-9)
    assert float((merged_gradient - alone_gradient).abs().max() / alone_gradient.abs().max()) < 1e-9


def test_runs_of_many_lengths_are_filled_up_and_computed_together() -> None:
    tree = pack(episodes(3, 24), min_run=16).microbatches[0].tree
    assert tree is not None
    own = _build_pieces(TreeLayout(tree, torch.device("cpu")))[0]
    groups = segments_cpu._pad_segments(own.row_counts)
    assert groups is not None and len(groups) < len(own.row_counts) / 4
    covered = torch.cat([group.tokens for group in groups]).sort().values
    assert torch.equal(covered, torch.arange(sum(own.row_counts)))
