"""Weights in shared memory (training/rank_memory.py)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.training import rank_memory

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(torch.Size)
TYPES = st.sampled_from([torch.bfloat16, torch.float32, torch.float64, torch.uint8])


@settings(max_examples=25, deadline=None)
@given(kinds=st.lists(st.tuples(TYPES, SHAPES), min_size=1, max_size=6))
def test_what_one_side_writes_the_other_reads(tmp_path_factory, kinds):
    file = tmp_path_factory.mktemp("shared") / "weights"
    layout = {f"weight {i}": kind for i, kind in enumerate(kinds)}
    ours, theirs = (rank_memory.map_weights(file, layout) for _ in range(2))
    for number, tensor in enumerate(theirs.values()):
        tensor.fill_(number + 1)
    for number, (dtype, shape) in enumerate(kinds):
        seen = ours[f"weight {number}"]
        assert seen.dtype == dtype and seen.shape == shape
        assert (seen == number + 1).all()


def test_weights_that_do_not_fit_into_memory_are_not_shared():
    small = rank_memory.describe_layout([("w", torch.zeros(3))])
    huge = {"w": (torch.float32, torch.Size([1 << 60]))}
    assert not rank_memory.has_room(huge)
    assert rank_memory.has_room(small) == rank_memory.PLACE.is_dir()


@pytest.mark.gpu
def test_a_gpu_writes_to_shared_memory_whether_its_pages_are_locked_or_not(tmp_path):
    layout = {"w": (torch.bfloat16, torch.Size([1 << 20]))}
    ours, theirs = (rank_memory.map_weights(tmp_path / "weights", layout)["w"] for _ in range(2))
    given_ = torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):  # the second time CUDA refuses, as the pages are locked already
        rank_memory.lock_pages({"w": theirs})
        theirs.zero_()
        theirs.copy_(given_, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(ours, given_.cpu())
