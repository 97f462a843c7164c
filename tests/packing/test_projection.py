"""Scores from hidden states in chunks equal those from all logits, forward and backward.

The kernels run on a GPU, or where Triton is installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from stepwell.algos.kl import full
from stepwell.packing import projection, token_scores
from stepwell.packing.projection import HeadInputs, project_scores
from stepwell.packing.scores import compute_row_kls

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
NEEDS_INTERPRETER = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")


def draw_case(
    seed: int, num_rows: int, vocab: int, dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    width, num_tokens = 8, 2 * num_rows
    return {
        "hidden": torch.randn(num_rows, width, generator=draw).to(device, dtype).requires_grad_(),
        "weight": torch.randn(vocab, width, generator=draw).to(device, dtype).requires_grad_(),
        "bias": torch.randn(vocab, generator=draw).to(device, dtype).requires_grad_(),
        "inverse_temperatures": (0.5 + torch.rand(num_rows, generator=draw)).double().to(device),
        "rows": torch.randint(num_rows, (num_tokens,), generator=draw).to(device),
        "targets": torch.randint(vocab, (num_tokens,), generator=draw).to(device),
    }


def score_and_pull(case: dict[str, Any], *, chunked: bool, with_entropies: bool) -> list[Tensor]:
    """Logprobs, entropies, and gradients of hidden states, weights and biases."""
    leaves = [case[name] for name in ("hidden", "weight", "bias")]
    rest = [case[name] for name in ("inverse_temperatures", "rows", "targets")]
    if chunked:
        logprobs, entropies, _ = project_scores(*leaves, *rest, with_entropies=with_entropies)
    else:
        logprobs, entropies = token_scores(F.linear(*leaves), *rest, with_entropies=with_entropies)
    outputs = [logprobs] if entropies is None else [logprobs, entropies]
    loss = sum((part * torch.linspace(-1, 2, part.numel()).to(part)).sum() for part in outputs)
    return [*outputs, *torch.autograd.grad(loss, leaves)]


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(projection.KEPT_BYTES, device, 0)
        monkeypatch.setitem(projection.CHUNK_BYTES, device, 1 << 10)


@pytest.mark.parametrize("with_entropies", [True, False])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_chunks_equal_all_logits_at_once(few_rows, dtype, tolerance, with_entropies) -> None:
    case = draw_case(0, 13, 37, dtype)
    ours, theirs = (score_and_pull(case, chunked=c, with_entropies=with_entropies) for c in (True, False))
    assert_close(ours, theirs, tolerance)


@pytest.mark.parametrize("vocab", [49_152, 151_936])
def test_chunks_of_real_vocabularies_equal_all_logits_at_once(few_rows, vocab: int) -> None:
    case = draw_case(0, 3, vocab, torch.float64)
    ours, theirs = (score_and_pull(case, chunked=c, with_entropies=True) for c in (True, False))
    assert_close(ours, theirs, 1e-12)


def test_chunks_in_bfloat16_round_as_all_logits_do(few_rows) -> None:
    case = draw_case(1, 13, 37, torch.bfloat16)
    ours, theirs = (score_and_pull(case, chunked=c, with_entropies=True) for c in (True, False))
    assert_close(ours[:2], theirs[:2], 1e-5)
    for a, b in zip(ours[2:], theirs[2:], strict=True):
        assert float((a.float() - b.float()).norm() / b.float().norm()) < 1e-2


@given(seed=st.integers(0, 10**6), num_rows=st.integers(1, 9), chunk=st.integers(1, 2000))
def test_the_size_of_a_chunk_changes_nothing(seed: int, num_rows: int, chunk: int) -> None:
    case = draw_case(seed, num_rows, 11, torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(projection.KEPT_BYTES, "cpu", 0)
        patch.setitem(projection.CHUNK_BYTES, "cpu", chunk)
        ours = score_and_pull(case, chunked=True, with_entropies=True)
    assert_close(ours, score_and_pull(case, chunked=False, with_entropies=True), 1e-11)


def test_a_frozen_head_gets_no_gradient(few_rows) -> None:
    case = draw_case(2, 5, 11, torch.float64)
    case["weight"].requires_grad_(False)
    logprobs, *_ = project_scores(**case)
    logprobs.sum().backward()
    assert case["weight"].grad is None and case["hidden"].grad is not None


def compare_and_pull(case: dict[str, Any], *, chunked: bool) -> list[Tensor]:
    """Logprobs, entropies, full KL to other rows and another head, and gradients of the policy's side."""
    leaves = [case[name] for name in ("hidden", "weight", "bias")]
    rest = [case[name] for name in ("inverse_temperatures", "rows", "targets")]
    draw = torch.Generator().manual_seed(7)
    others = HeadInputs(
        *(leaf.detach() + 0.3 * torch.randn(leaf.shape, generator=draw).to(leaf) for leaf in leaves)
    )
    if chunked:
        logprobs, entropies, kls = project_scores(*leaves, *rest, reference=others)
    else:
        logits = F.linear(*leaves)
        logprobs, entropies = token_scores(logits, *rest)
        scale = rest[0].to(torch.promote_types(logits.dtype, torch.float32))[:, None]
        theirs = F.linear(*others)
        kls = full(logits.to(scale) * scale, theirs.to(scale) * scale)
    outputs = [logprobs, entropies, kls]
    assert float(kls.detach().mean()) > 0.01
    loss = sum((part * torch.linspace(-1, 2, part.numel()).to(part)).sum() for part in outputs)
    return [*outputs, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_the_full_kl_in_chunks_equals_that_of_all_logits(few_rows, dtype, tolerance) -> None:
    case = draw_case(0, 13, 37, dtype)
    assert_close(compare_and_pull(case, chunked=True), compare_and_pull(case, chunked=False), tolerance)


@pytest.mark.parametrize("vocab", [49_152, 151_936])
def test_the_full_kl_of_real_vocabularies_equals_that_of_all_logits(few_rows, vocab: int) -> None:
    case = draw_case(0, 3, vocab, torch.float64)
    assert_close(compare_and_pull(case, chunked=True), compare_and_pull(case, chunked=False), 1e-12)


def test_the_full_kl_to_oneself_is_zero_and_pulls_nothing(few_rows) -> None:
    case = draw_case(0, 13, 37, torch.float32)
    own = HeadInputs(*(case[name].detach() for name in ("hidden", "weight", "bias")))
    *_, kls = project_scores(**case, reference=own)
    assert kls is not None and not bool(kls.any())
    (grads,) = torch.autograd.grad(kls.sum(), case["hidden"])
    assert float(grads.abs().max()) < 1e-7


def test_a_word_that_the_policy_excludes_adds_nothing_to_the_full_kl(few_rows) -> None:
    case = draw_case(4, 5, 11, torch.float64)
    with torch.no_grad():
        case["bias"][3] = -torch.inf
    case["targets"][:] = 1
    ours, theirs = (compare_and_pull(case, chunked=chunked) for chunked in (True, False))
    assert all(bool(part.isfinite().all()) for part in ours[:3])
    assert_close(ours[:3], theirs[:3], 1e-12)


@pytest.mark.parametrize("excludes_too", [False, True])
def test_a_word_that_is_excluded_leaves_the_gradient_of_a_kl_of_all_logits_finite(excludes_too: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(3, 5, generator=draw, dtype=torch.float64) for _ in range(2))
    ours[:, 2] = -torch.inf
    if excludes_too:
        theirs[:, 2] = -torch.inf
    ours.requires_grad_()
    inverse = torch.tensor([1.0, 2.0, 0.5])
    found = compute_row_kls(ours, theirs, inverse)
    expected = full(ours * inverse[:, None], theirs * inverse[:, None])
    pulls = [torch.autograd.grad(kls.sum(), ours)[0] for kls in (found, expected)]
    assert_close([found, pulls[0]], [expected, pulls[1]], 1e-12)


@NEEDS_INTERPRETER
@pytest.mark.parametrize("vocab", [37, 5000])
def test_the_kernel_of_the_full_kl_in_the_interpreter_equals_torch(few_rows, monkeypatch, vocab) -> None:
    from stepwell.packing import projection_cuda

    case = draw_case(3, 5, vocab, torch.float32)
    theirs = compare_and_pull(case, chunked=True)
    monkeypatch.setattr(projection, "_find_backend", lambda hidden: projection_cuda)
    assert_close(compare_and_pull(case, chunked=True), theirs, 3e-5)


@NEEDS_INTERPRETER
@pytest.mark.parametrize("vocab", [37, 5000])
@pytest.mark.parametrize("with_entropies", [True, False])
def test_kernels_in_the_interpreter_equal_torch(few_rows, monkeypatch, vocab, with_entropies) -> None:
    from stepwell.packing import projection_cuda

    case = draw_case(3, 5, vocab, torch.float32)
    theirs = score_and_pull(case, chunked=True, with_entropies=with_entropies)
    monkeypatch.setattr(projection, "_find_backend", lambda hidden: projection_cuda)
    assert_close(score_and_pull(case, chunked=True, with_entropies=with_entropies), theirs, 3e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [37, 49152, 151936])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_kernels_on_the_gpu_equal_torch(monkeypatch, vocab, dtype, tolerance) -> None:
    monkeypatch.setitem(projection.CHUNK_BYTES, "cuda", 8 * vocab)
    case = draw_case(4, 33, vocab, dtype, "cuda")
    ours, theirs = (score_and_pull(case, chunked=c, with_entropies=True) for c in (True, False))
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.float() - b.float()).norm() / b.float().norm()) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [37, 49152, 151936])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_the_kernel_of_the_full_kl_on_the_gpu_equals_torch(monkeypatch, vocab, dtype, tolerance) -> None:
    monkeypatch.setitem(projection.CHUNK_BYTES, "cuda", 8 * vocab)
    case = draw_case(4, 33, vocab, dtype, "cuda")
    ours, theirs = (compare_and_pull(case, chunked=chunked) for chunked in (True, False))
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.float() - b.float()).norm() / b.float().norm()) < tolerance
