"""What the shared set-up promises to every test."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.mark.parametrize("turn", ["first", "again"])
def test_threads_that_a_test_sets_end_with_it(turn: str) -> None:
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"]), turn
    torch.set_num_threads(torch.get_num_threads() + 1)
