"""A trainer's rank that computes in 16 bits on the cores: `python -m tests.training.half_rank FD`."""

from __future__ import annotations

import os
import sys

import torch

from stepwell.policies import causal_lm
from stepwell.training import rank_main


def start_without_onednn(num_threads: int | None = None) -> None:
    """Threads alone: where oneDNN has no products of 16 bits, it would refuse them."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    causal_lm.check_dtype = lambda dtype, device: None
    rank_main.set_numerics = start_without_onednn
    code = rank_main.main()
    sys.stderr.flush()
    os._exit(code)
