"""Segment arithmetic against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stepwell.algos import Segments

lengths_lists = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def make(lengths: list[int]) -> tuple[Segments, Tensor]:
    x = torch.randn(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(sum(lengths)))
    return Segments(torch.tensor(lengths), sum(lengths)), x


def test_index_tensors_of_two_segments() -> None:
    segments = Segments(torch.tensor([2, 3]), 5)
    assert segments.index.tolist() == [0, 0, 1, 1, 1]
    assert segments.position.tolist() == [0, 1, 0, 1, 2]
    assert segments.left.tolist() == [1, 0, 2, 1, 0]
    assert segments.first.tolist() == [0, 2]
    assert segments.last.tolist() == [1, 4]
    assert segments.longest == 3


def test_shift_puts_the_final_number_after_each_segment() -> None:
    segments = Segments(torch.tensor([2, 1]), 3)
    shifted = segments.shift(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([8.0, 9.0]))
    assert shifted.tolist() == [2.0, 8.0, 9.0]


def test_at_last_is_zero_elsewhere() -> None:
    segments = Segments(torch.tensor([2, 1]), 3)
    assert segments.at_last(torch.tensor([5.0, 6.0])).tolist() == [0.0, 5.0, 6.0]


@given(lengths_lists)
def test_sums_and_means_equal_those_of_each_slice(lengths: list[int]) -> None:
    segments, x = make(lengths)
    slices = x.split(lengths)
    torch.testing.assert_close(segments.sum(x), torch.stack([part.sum() for part in slices]))
    torch.testing.assert_close(segments.mean(x), torch.stack([part.mean() for part in slices]))


@given(lengths_lists, st.sampled_from([0.0, 0.3, 0.99, 1.0]))
def test_discounted_sum_equals_the_backward_loop(lengths: list[int], decay: float) -> None:
    segments, x = make(lengths)
    expected = []
    for part in x.split(lengths):
        carried, reversed_sums = 0.0, []
        for value in reversed(part.tolist()):
            carried = value + decay * carried
            reversed_sums.append(carried)
        expected += reversed(reversed_sums)
    torch.testing.assert_close(segments.sum_discounted(x, decay), torch.tensor(expected, dtype=torch.float64))


def test_discounted_sum_of_a_long_segment_neither_overflows_nor_forgets() -> None:
    # 0.5^5000 is far below the smallest float32: any 1/γ^n trick breaks here.
    segments = Segments(torch.tensor([5000]), 5000)
    total = segments.sum_discounted(torch.ones(5000), 0.5)
    torch.testing.assert_close(total[:4900], torch.full((4900,), 2.0))
    assert total[-1] == 1.0


def test_discounted_sum_leaves_its_input_alone() -> None:
    segments, x = make([3, 2])
    before = x.clone()
    segments.sum_discounted(x, 0.9)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_reductions_have_the_right_gradient(name: str) -> None:
    segments, x = make([2, 1, 4])
    assert torch.autograd.gradcheck(getattr(segments, name), x.requires_grad_())


def test_expand_has_the_right_gradient() -> None:
    segments = Segments(torch.tensor([2, 1, 4]), 7)
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(segments.expand, x)
