"""How long a critic's own passes take."""

from __future__ import annotations

import time

import pytest
import torch
from tests.runs.small import warmed_model
from tests.training.made import sampled

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.policies import CausalLMPolicy
from stepwell.training import Trainer, critic_clock


def trainer(critic: str, **settings: object) -> Trainer:
    torch.manual_seed(0)
    policy = CausalLMPolicy.from_pretrained(warmed_model(), critic=critic)  # type: ignore[arg-type]
    made = Trainer(policy, RECIPES["steppo"], TrainConfig.model_validate(settings), horizon=2)
    made.freeze_reference()
    return made


class Ticks:
    """A clock that is one second further at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(("settings", "ticks"), [({}, 2.0), ({"update_epochs": 3}, 6.0)])
def test_every_pass_is_one_way_forward_and_one_back(
    settings: dict[str, int], ticks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(critic_clock.time, "perf_counter", Ticks())
    assert trainer("own", **settings).update(sampled()[1])["time/critic_s"] == ticks


def test_microbatches_are_run_forward_twice_and_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic_clock.time, "perf_counter", Ticks())
    one = trainer("own", token_budget=385)
    spent = one.update(sampled()[1])["time/critic_s"]
    assert spent >= 6.0 and spent % 3 == 0  # two microbatches or more


def test_it_is_a_share_of_the_update_and_leaves_no_hooks() -> None:
    one = trainer("own")
    began = time.perf_counter()
    spent = one.update(sampled()[1])["time/critic_s"]
    assert 0.0 < spent < time.perf_counter() - began
    critic = one.policy.critic
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in critic.modules())


def test_a_shared_critic_has_no_time_of_its_own() -> None:
    assert "time/critic_s" not in trainer("shared").update(sampled()[1])
