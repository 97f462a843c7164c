"""Logprobs and entropies against torch's own log_softmax, value and gradient."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor

from stepwell.packing import token_scores

module = importlib.import_module("stepwell.packing.scores")

ROWS = torch.tensor([0, 2, 2, 1, 0, 0])
TARGETS = torch.tensor([3, 1, 1, 6, 0, 3])  # the pair (0, 3) and the pair (2, 1) occur twice
INVERSE = torch.tensor([1.0, 1 / 0.7, 2.0], dtype=torch.float64)


def plain(logits: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(logits * INVERSE[:, None].to(logits.dtype), -1)
    return logprobs[ROWS, TARGETS], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("chunk_bytes", [1, 60, 1 << 20])
def test_values_and_gradients_equal_log_softmax(chunk_bytes, monkeypatch) -> None:
    monkeypatch.setitem(module.CHUNK_BYTES, "cpu", chunk_bytes)
    torch.manual_seed(0)
    logits = (3 * torch.randn(3, 7, dtype=torch.float64)).requires_grad_()
    pulls = torch.randn(6, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    ours, theirs = token_scores(logits, INVERSE, ROWS, TARGETS), plain(logits)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
    (a,), (b,) = torch.autograd.grad(ours, logits, pulls), torch.autograd.grad(theirs, logits, pulls)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_bfloat16_logits_give_float32_scores() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 7).bfloat16()
    ours, theirs = token_scores(logits, INVERSE, ROWS, TARGETS), plain(logits.float())
    assert ours[0].dtype is ours[1].dtype is torch.float32
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_excluded_tokens_add_nothing_to_the_entropy() -> None:
    logits = torch.zeros(3, 7)
    logits[:, 4:] = float("-inf")
    _, entropies = token_scores(logits, INVERSE, ROWS[:2], torch.tensor([0, 1]))
    torch.testing.assert_close(entropies, torch.full((3,), 4.0).log())


def test_leaving_entropies_out_changes_no_logprob_and_no_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 7, dtype=torch.float64).requires_grad_()
    both, alone = (token_scores(logits, INVERSE, ROWS, TARGETS, with_entropies=w) for w in (True, False))
    assert alone[1] is None
    assert torch.equal(both[0], alone[0])
    (a,), (b,) = (torch.autograd.grad(part[0].square().sum(), logits) for part in (both, alone))
    torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)
