"""The prefix tree and its layout, against definitions that are slow and obvious."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import ArrayAction, ArrayState, ImageSpan, InputError, Step, hash_bytes
from stepwell.packing import Packed, PrefixTree, TreeLayout, pack

# few distinct tokens, so that prefixes are often shared
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=9)
step_lists = st.lists(st.tuples(sequences, st.lists(st.integers(0, 2), max_size=4)), min_size=1, max_size=12)


def steps_of(pairs: list[tuple[list[int], list[int]]]) -> list[Step]:
    return [Step.from_tokens(prompt, action) for prompt, action in pairs]


def tree_of(packed: Packed) -> PrefixTree:
    (microbatch,) = packed.microbatches
    assert microbatch.tree is not None
    return microbatch.tree


def sites_by_step(packed: Packed) -> list[tuple[PrefixTree, np.ndarray]]:
    """The tree and the L+1 value sites of each step, in the order of the steps."""
    found: dict[int, tuple[PrefixTree, np.ndarray]] = {}
    for microbatch in packed.microbatches:
        assert microbatch.tree is not None
        sites = microbatch.value_sites[microbatch.value_rows]
        counts = np.array(packed.action_lengths)[microbatch.steps] + 1
        for step, part in zip(microbatch.steps, np.split(sites, np.cumsum(counts)[:-1]), strict=True):
            found[int(step)] = (microbatch.tree, part)
    return [found[index] for index in range(len(packed))]


@given(step_lists, st.one_of(st.none(), st.integers(13, 40)))
def test_every_path_restores_its_sequence_and_its_sites(pairs, budget) -> None:
    packed = pack(steps_of(pairs), token_budget=budget)
    for (prompt, action), (tree, sites) in zip(pairs, sites_by_step(packed), strict=True):
        path = tree.find_path(int(sites[-1]))
        assert tree.token_ids[path].tolist() == prompt + action
        assert tree.positions[path].tolist() == list(range(len(path)))
        assert path[len(prompt) - 1 :].tolist() == sites.tolist()


@given(step_lists)
def test_token_count_is_the_number_of_distinct_prefixes(pairs) -> None:
    prefixes = {tuple((p + a)[:n]) for p, a in pairs for n in range(1, len(p + a) + 1)}
    assert pack(steps_of(pairs)).num_tokens == len(prefixes)


@given(step_lists)
def test_closed_form_of_ancestors_equals_walking_up_the_tree(pairs) -> None:
    tree = tree_of(pack(steps_of(pairs)))
    parents = []
    for token, depth in enumerate(tree.positions):
        # in depth-first order the parent is the last token before it that is one level up
        above = [k for k in range(token) if tree.positions[k] == depth - 1]
        parents.append(above[-1] if depth else None)
    for q in range(tree.num_tokens):
        ancestors, at = {q}, parents[q]
        while at is not None:
            ancestors.add(at)
            at = parents[at]
        closed = {k for k in range(tree.num_tokens) if k <= q < tree.subtree_end[k]}
        assert closed == ancestors


@given(step_lists)
def test_runs_cover_every_token_once_and_name_its_ancestors(pairs) -> None:
    tree = tree_of(pack(steps_of(pairs)))
    seen = []
    for group in TreeLayout(tree, torch.device("cpu")).run_groups:
        for start in group.starts:
            above = [token for a, b in group.ancestors for token in range(a, b)]
            seen += range(start, start + group.length)
            for token in range(start, start + group.length):
                assert tree.find_path(token).tolist() == above + list(range(start, token + 1))
    assert sorted(seen) == list(range(tree.num_tokens))


@given(step_lists, st.integers(13, 60))
def test_microbatches_fit_the_budget_and_hold_every_step_once(pairs, budget) -> None:
    packed = pack(steps_of(pairs), token_budget=budget)
    assert all(microbatch.num_tokens <= budget for microbatch in packed.microbatches)
    assert sorted(np.concatenate([m.steps for m in packed.microbatches])) == list(range(len(pairs)))
    # no two neighbours could have been one, so there are at most twice as many as needed
    bound = 2 * -(-sum(len(p + a) for p, a in pairs) // budget) + 1
    assert len(packed.microbatches) <= bound


def test_budget_cuts_between_groups_rather_than_inside_one() -> None:
    """Two groups of four on two prompts of 20: cutting anywhere else computes a prompt twice."""
    groups = [[Step.from_tokens([g] * 20, [i, i]) for i in range(4)] for g in (7, 8)]
    packed = pack([step for pair in zip(*groups, strict=True) for step in pair], token_budget=40)
    assert [microbatch.num_tokens for microbatch in packed.microbatches] == [28, 28]


def test_worked_example_of_the_docstring() -> None:
    tree = tree_of(pack([Step.from_tokens([5, 6], [7, 8]), Step.from_tokens([5, 6], [9])]))
    assert tree.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert tree.positions.tolist() == [0, 1, 2, 3, 2]
    assert tree.subtree_end.tolist() == [5, 5, 4, 4, 5]


def test_equal_placeholders_of_different_images_are_not_shared() -> None:
    first, second = (ImageSpan(hash_bytes(name), 1, 2) for name in (b"a", b"b"))
    prompts = [Step.from_tokens([1, 9, 9, 4], [5], images=(span,)) for span in (first, second, first)]
    assert pack(prompts).num_tokens == 9  # one shared token, then two branches of four
    assert pack(prompts[::2]).num_tokens == 5


def test_packing_a_million_tokens_takes_well_under_a_second() -> None:
    draw = np.random.default_rng(0)
    context, steps = draw.integers(0, 50_000, size=500), []
    for _ in range(200):
        own = np.concatenate([context, draw.integers(0, 50_000, size=9_500)])
        steps += [Step.from_tokens(own[: 500 + 900 * i], own[500 + 900 * i :][:30]) for i in range(10)]
    assert sum(step.state.prompt_ids.size for step in steps) > 9_000_000
    start = time.process_time()
    packed = pack(steps, token_budget=100_000)
    assert time.process_time() - start < 2.0  # nine million step tokens, 1.7 million distinct
    assert packed.num_tokens < 2_000_000


def test_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="steps is empty"):
        pack([])


def test_step_over_the_budget_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"steps\[1\] has 7 tokens .* token_budget=6"):
        pack([Step.from_tokens([1], [2]), Step.from_tokens([1] * 5, [2, 2])], token_budget=6)
    with pytest.raises(InputError, match="token_budget must be at least 1"):
        pack([Step.from_tokens([1], [2])], token_budget=0)


def test_array_states_and_strangers_are_refused() -> None:
    robot = Step(ArrayState({"x": np.zeros(2)}), ArrayAction(np.zeros((1, 2)), 0), np.zeros(0, np.float32))
    with pytest.raises(InputError, match=r"steps\[0\] has an array state"):
        pack([robot])
    with pytest.raises(InputError, match="not a Step"):
        pack([[1, 2, 3]])  # type: ignore[list-item]
