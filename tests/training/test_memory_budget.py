"""An automatic token budget: chosen from free memory, lowered without losing the update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.training.made import sampled
from tests.training.test_trainer import trainer, weights

from stepwell.core import ConfigError, Trajectory
from stepwell.packing import Outputs
from stepwell.policies.captured_passes import CapturedPasses
from stepwell.training import memory_budget
from stepwell.training.memory_budget import count_token_bytes, guess_tokens


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return sampled()[1]


def limit_memory(policy: Any, most: int) -> list[int]:
    """Let microbatches above so many tokens run out of memory; returns the sizes that were tried."""
    run, tried = policy.run, []

    def run_small(microbatch: Any, **wanted: bool) -> Outputs:
        tried.append(microbatch.num_tokens)
        if microbatch.num_tokens > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(microbatch, **wanted)

    policy.run = run_small
    return tried


@pytest.mark.parametrize("name", ["steppo", "grpo"])
def test_an_update_that_runs_out_of_memory_is_made_in_smaller_parts(
    trajectories: list[Trajectory], name: str
) -> None:
    whole, cut = trainer(name), trainer(name, token_budget="auto")
    tried = limit_memory(cut.policy, 390)
    one, other = whole.update(trajectories), cut.update(trajectories)
    assert max(tried) > 390, "the first try was too large"
    assert "parity/max" in other
    for key in one.keys() & other.keys() - {"packed_tokens"}:
        assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), key
    first, second = weights(whole), weights(cut)
    far = [float(((first[key] - second[key]).abs() > 1e-4).float().mean()) for key in first]
    assert max(far) < 0.01  # (Adam's first step has the sign of a gradient that is nearly zero)
    tried.clear()
    cut.update(trajectories)
    assert max(tried) <= 390, "what fitted is remembered"


def test_a_given_budget_is_never_changed(trajectories: list[Trajectory]) -> None:
    one = trainer("steppo", token_budget=100_000)
    limit_memory(one.policy, 390)
    with pytest.raises(ConfigError, match=r"train\.token_budget"):
        one.update(trajectories)


def test_captured_passes_give_their_memory_back_before_an_update_fails(
    trajectories: list[Trajectory],
) -> None:
    one, held = trainer("steppo", token_budget=100_000), CapturedPasses()
    held.passes.append(object())  # type: ignore[arg-type]
    run, failures = one.policy.run, iter([torch.OutOfMemoryError("CUDA out of memory")])

    def run_later(microbatch: Any, **wanted: bool) -> Outputs:
        for failure in failures:
            raise failure
        return run(microbatch, **wanted)

    one.policy.run = run_later  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="no longer captured"):
        one.update(trajectories)
    assert not held.passes and one.num_done == 1


def test_a_step_that_does_not_fit_alone_is_refused(trajectories: list[Trajectory]) -> None:
    one = trainer("grpo", token_budget="auto")
    limit_memory(one.policy, 10)
    with pytest.raises(ConfigError, match=r"train\.token_budget"):
        one.update(trajectories)


def test_the_guess_grows_with_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = trainer("steppo").policy
    guesses = []
    for free in (2e9, 4e9):
        monkeypatch.setattr(memory_budget, "read_free_bytes", lambda device, free=free: free)
        guesses.append(guess_tokens(policy))
    assert guesses[1] - guesses[0] == pytest.approx(0.8 * 2e9 / count_token_bytes(policy), rel=0.01)
