"""Attention over slot storage: the fused kernel of the CPU against the formula, written out."""

from __future__ import annotations

import pytest
import torch

from stepwell.engines.attention import AttentionSpec, build_mask_bias, compute_attention


def attend_plainly(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """The formula in float64."""
    scores = query.double() * scaling @ key.double().mT
    if bias is not None:
        wide = bias.double()
        grouped = wide if wide.ndim == 4 else wide.expand(-1, -1, query.shape[2] // wide.shape[3], -1, -1)
        scores = scores + grouped.reshape(len(query), 1, -1, key.shape[2])
    return torch.softmax(scores, dim=-1) @ value.double()


@pytest.mark.parametrize("num_heads", [1, 3], ids=["own keys", "grouped keys"])
@pytest.mark.parametrize("window", [None, 4])
def test_a_decoding_step_agrees_with_the_formula(num_heads: int, window: int | None) -> None:
    torch.manual_seed(0)
    storage = torch.randn(2, 6, 2, 40, 8)  # more rows and a longer storage than is read
    key, value = storage[:, 1:5, :, :13]
    query = torch.randn(4, 2, num_heads, 8)
    bias = build_mask_bias(torch.tensor([12, 0, 5, 9]), 13, window, torch.float32)[:, None, None]
    found = compute_attention(query, key, value, bias, AttentionSpec(0.3, window))
    torch.testing.assert_close(
        found.double(), attend_plainly(query, key, value, bias, 0.3), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("num_heads", [1, 3], ids=["own keys", "grouped keys"])
def test_runs_of_new_tokens_agree_with_the_formula(num_heads: int) -> None:
    torch.manual_seed(0)
    key, value = torch.randn(2, 3, 2, 11, 8)
    query = torch.randn(3, 2, num_heads * 4, 8)  # four tokens of each run
    bias = build_mask_bias(torch.arange(4).expand(3, 4) + 7, 11, None, torch.float32)[:, None, None]
    found = compute_attention(query, key, value, bias, AttentionSpec(0.3))
    torch.testing.assert_close(
        found.double(), attend_plainly(query, key, value, bias, 0.3), atol=1e-5, rtol=0
    )


def test_keys_and_values_of_different_widths_are_attended_to() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 1, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 5)
    found = compute_attention(query, key, value, None, AttentionSpec(0.3))
    torch.testing.assert_close(
        found.double(), attend_plainly(query, key, value, None, 0.3), atol=1e-5, rtol=0
    )
