"""Every process of a run computes with the same switches, and no CPU in half precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.pipeline.small import small_config

from stepwell.core import ConfigError
from stepwell.engines import EmbeddedEngine
from stepwell.pipeline.planning import plan
from stepwell.pipeline.run import train
from stepwell.policies import CausalLMPolicy
from stepwell.policies.numerics import set_numerics


def test_switches_that_something_else_has_turned_are_turned_back() -> None:
    torch.backends.mkldnn.set_flags(False)
    torch.set_float32_matmul_precision("medium")
    threads = torch.get_num_threads()
    set_numerics(threads + 1)
    assert torch.backends.mkldnn.enabled and torch.get_float32_matmul_precision() == "highest"
    assert torch.get_num_threads() == threads + 1
    set_numerics(threads)
    assert torch.get_num_threads() == threads


def test_a_run_computes_with_onednn_whatever_happened_before_in_its_process(tmp_path: Path) -> None:
    torch.backends.mkldnn.set_flags(False)
    train(small_config("train.num_updates=1", "eval.num_tasks=0", folder=tmp_path))
    assert torch.backends.mkldnn.enabled


def test_half_precision_on_a_cpu_is_refused_with_what_to_set_instead() -> None:
    with pytest.raises(ConfigError, match=r"bfloat16 needs a GPU.*Set dtype to float32, or device to cuda"):
        CausalLMPolicy.from_pretrained("tiny-0.3m", dtype="bfloat16")
    with pytest.raises(ConfigError, match="needs a GPU"):
        EmbeddedEngine.from_pretrained("tiny-0.3m", dtype="bfloat16")
    with pytest.raises(ConfigError, match="needs a GPU"):
        plan(small_config("policy.dtype=bfloat16"))
