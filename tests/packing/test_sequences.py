"""Trees unpacked into whole sequences for dense attention: the same outputs and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.packing.test_attention import (
    SCORINGS,
    dense_attention,
    layout_of,
    outputs_and_gradients,
    random_inputs,
    random_steps,
)

from stepwell.core import Step
from stepwell.packing import sequences


@pytest.fixture
def any_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "SHORTEST", 1)
    monkeypatch.setattr(sequences, "MOST_WORK", 1e9)
    monkeypatch.setattr(sequences, "MOST_TOKENS", 1e9)


def alone(*lengths: int) -> list[Step]:
    """Dialogues that share nothing."""
    return [Step.from_tokens(np.arange(length) + 1000 * n, []) for n, length in enumerate(lengths)]


@pytest.mark.usefixtures("any_tree")
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)])
@pytest.mark.parametrize(
    "steps",
    [random_steps(1, longest=40), random_steps(2), alone(128, 128, 128), alone(70, 129, 5), alone(33, 33)],
    ids=["bushy", "long", "equal", "unequal", "padded"],
)
def test_sequences_equal_dense_attention_and_its_gradients(steps, heads) -> None:
    layout, how = layout_of(steps, padded=True), SCORINGS["plain"]
    inputs, count = random_inputs(layout, heads, 8), layout.tree.num_tokens
    inputs[-1][:, count:] = 0  # nobody reads padding
    ours = outputs_and_gradients(sequences.sequence_attention, inputs, layout, how)
    theirs = outputs_and_gradients(dense_attention, inputs, layout, how)
    assert (ours[0] - theirs[0])[:, :count].abs().max() < 1e-12 * theirs[0].abs().max()
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert (a - b).abs().max() < 1e-12 * b.abs().max()


@pytest.mark.usefixtures("any_tree")
def test_equal_dialogues_that_share_nothing_are_not_copied() -> None:
    found = sequences.find_sequences(layout_of(alone(128, 128, 128), padded=True))
    assert found is not None and found.tokens is None and found.groups == ((3, 128),)


@pytest.mark.usefixtures("any_tree")
def test_unequal_dialogues_have_few_lengths_and_batches_of_powers_of_two() -> None:
    found = sequences.find_sequences(layout_of(alone(4000, 4001, 4002, 9000)))
    assert found is not None and found.groups == ((2, 4096), (1, 4096), (1, 9216))
    assert found.tokens is not None and found.tokens.size == 3 * 4096 + 9216


def test_short_dialogues_and_long_shared_prompts_are_refused() -> None:
    assert sequences.find_sequences(layout_of(alone(1023, 1024))) is None
    assert sequences.find_sequences(layout_of(alone(1024, 1024))) is not None
    prompt = np.arange(2000)
    siblings = [Step.from_tokens(np.append(prompt, np.full(500, 5000 + n)), []) for n in range(4)]
    assert sequences.find_sequences(layout_of(siblings)) is None


@pytest.mark.gpu
@pytest.mark.usefixtures("any_tree")
@pytest.mark.parametrize("heads", [(6, 2), (3, 3)])
def test_dense_kernels_on_the_gpu_equal_dense_attention(heads) -> None:
    for steps in (random_steps(1), alone(128, 128, 128), alone(70, 129, 5)):
        layout, how = layout_of(steps, "cuda", padded=True), SCORINGS["plain"]
        inputs = random_inputs(layout, heads, 64, torch.bfloat16, "cuda")
        assert sequences.supports_sequences(inputs[0], inputs[2], layout, how)
        count = layout.tree.num_tokens
        inputs[-1][:, count:] = 0
        wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
        ours = outputs_and_gradients(sequences.sequence_attention, inputs, layout, how)
        theirs = outputs_and_gradients(dense_attention, wide, layout, how)
        assert (ours[0] - theirs[0])[:, :count].abs().max() < 0.01 * theirs[0].abs().max()
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            assert (a - b).abs().max() < 0.02 * b.abs().max()
