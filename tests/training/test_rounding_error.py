"""Errors against float32: measured with the policy's own weights, on fresh steps alone."""

from __future__ import annotations

import copy

import numpy as np
import torch

from stepwell.core import Step
from stepwell.core.versions import VersionSpan
from stepwell.policies import CausalLMPolicy
from stepwell.training.rounding_error import measure_errors


def make_steps(policy: CausalLMPolicy, offset: float, version: int = 0) -> list[Step]:
    """Steps whose engine differs from the policy by `offset` in every token."""
    rng = np.random.default_rng(version)
    steps = [Step.from_tokens(rng.integers(5, 90, 12), rng.integers(5, 90, 6)) for _ in range(20)]
    for step, logprobs in zip(steps, policy.score(steps), strict=True):
        step.behavior_logprobs = (logprobs + offset).astype(np.float32)
        step.policy_version = VersionSpan(version, version)
    return steps


def test_a_float32_policy_is_its_own_truth_and_the_engine_is_measured_against_it() -> None:
    policy = CausalLMPolicy.from_pretrained("tiny-0.3m")
    before = copy.deepcopy(policy.state_dict())
    errors = measure_errors(policy, make_steps(policy, offset=0.01))
    assert errors is not None and errors.num_tokens == 120
    assert errors.engine_farther == 1.0
    np.testing.assert_allclose(errors.engine, 0.01, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_steps_of_older_versions_are_left_out() -> None:
    policy = CausalLMPolicy.from_pretrained("tiny-0.3m")
    steps = make_steps(policy, offset=0.5, version=1) + make_steps(policy, offset=0.01, version=2)
    errors = measure_errors(policy, steps, version=2)
    assert errors is not None and errors.num_tokens == 120 and errors.engine.max() < 0.02


def test_at_most_so_many_tokens_are_compared() -> None:
    policy = CausalLMPolicy.from_pretrained("tiny-0.3m")
    errors = measure_errors(policy, make_steps(policy, offset=0.01), max_tokens=30)
    assert errors is not None and 0 < errors.num_tokens <= 30


def test_a_share_of_the_steps_is_spread_evenly() -> None:
    policy = CausalLMPolicy.from_pretrained("tiny-0.3m")
    errors = measure_errors(policy, make_steps(policy, offset=0.01), share=0.25)
    assert errors is not None and errors.num_tokens == 30
