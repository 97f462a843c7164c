"""The supervised start."""

from __future__ import annotations

import pytest
import torch
from tests.runs.small import small_components
from tests.training.made import made, sampled

from stepwell.config.training import WarmStartConfig
from stepwell.core import ConfigError, DivergenceError, InputError
from stepwell.policies import CausalLMPolicy
from stepwell.training import count_batches, imitate, sft
from stepwell.training.batch import TrajectoryMinibatch


def fresh() -> CausalLMPolicy:
    return CausalLMPolicy.from_pretrained("tiny-0.3m", critic="shared")


def test_an_update_per_batch_and_epoch_until_the_limit() -> None:
    config = WarmStartConfig(num_demos=1000, batch_size=4, epochs=3)
    assert count_batches(config, 10) == 9
    assert count_batches(config.model_copy(update={"max_updates": 5}), 10) == 5


def test_actor_and_critic_learn_what_was_shown_and_what_came_of_it() -> None:
    components = small_components("policy.model=tiny-0.3m", "recipe.name=steppo")
    shown = components.play_demonstrations(8, 0.0, 0)
    config = WarmStartConfig(num_demos=8, batch_size=8, epochs=14)
    told = list(imitate(components.policy, shown, config, seed=0))
    assert len(told) == 14
    assert told[-1]["loss/policy"] < 0.8 * told[0]["loss/policy"]
    assert told[-1]["loss/value"] < 0.8 * told[0]["loss/value"]


def test_the_same_seed_makes_the_same_weights_and_another_one_others() -> None:
    shown = [made([float(i)], group=str(i), lengths=[1 + i]) for i in range(6)]
    results = []
    for seed in (1, 1, 2):
        policy = fresh()
        for _ in imitate(policy, shown, WarmStartConfig(num_demos=6, batch_size=2), seed):
            pass
        results.append(policy.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])
    assert not all(torch.equal(results[0][key], results[2][key]) for key in results[0])


def test_a_token_budget_bounds_the_microbatches_and_changes_no_update() -> None:
    _, shown = sampled()
    budget = TrajectoryMinibatch(shown, torch.device("cpu")).packed.longest
    assert len(TrajectoryMinibatch(shown, torch.device("cpu"), token_budget=budget).packed.microbatches) > 1
    seen: dict[int | None, list[dict[str, float]]] = {}
    for given in (None, budget):
        config = WarmStartConfig(num_demos=len(shown), batch_size=len(shown), epochs=3)
        seen[given] = list(imitate(fresh(), shown, config, 0, token_budget=given))
    for one, other in zip(seen[None], seen[budget], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    assert seen[None][2]["loss/policy"] < seen[None][0]["loss/policy"]
    with pytest.raises(InputError, match="token_budget"):  # it is heeded: no step is ever split
        next(imitate(fresh(), shown, WarmStartConfig(num_demos=6), 0, token_budget=budget - 1))


def test_a_full_device_is_told_with_the_setting_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sft, "backward", full)
    shown = [made([1.0], group=str(i), lengths=[8]) for i in range(4)]
    tokens = TrajectoryMinibatch(shown, torch.device("cpu")).packed.num_tokens
    with pytest.raises(
        ConfigError, match=rf"update 1: .* {tokens} tokens; set train.token_budget to {tokens // 2}"
    ):
        next(imitate(fresh(), shown, WarmStartConfig(), 0))


def test_nothing_to_learn_from_and_what_is_not_finite_are_refused() -> None:
    with pytest.raises(InputError, match=r"nothing to learn from; set warm_start\.num_demos"):
        next(imitate(fresh(), [], WarmStartConfig(), 0))
    with pytest.raises(DivergenceError, match=r"warm start, update 1: .*warm_start\.optimizer"):
        next(imitate(fresh(), [made([1e30])], WarmStartConfig(), 0))
    poisoned = fresh()
    with torch.no_grad():
        next(iter(poisoned.parameters()))[10, 0] = torch.nan
    with pytest.raises(DivergenceError, match="warm start, update 1"):
        next(imitate(poisoned, [made([1.0])], WarmStartConfig(), 0))
