"""Shared set-up: one thread, a model cache inside the checkout, GPU tests only where a GPU is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Models that tests build or convert stay in the checkout, not in the user's own cache.
os.environ.setdefault("STEPWELL_CACHE", str(Path(__file__).parent.parent / ".cache"))
# No test asks the real hub; those about downloads start a small server of their own.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")
torch.set_num_threads(1)
# What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
