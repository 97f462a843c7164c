"""A policy from settings: what the settings say is what is built."""

from __future__ import annotations

import pytest

from stepwell.config import LoraConfig, PolicyConfig
from stepwell.core import ModelError
from stepwell.policies import CausalLMPolicy


def test_settings_build_the_policy_they_describe() -> None:
    lora = LoraConfig(rank=2, target_modules=("q_proj",))
    policy = CausalLMPolicy.from_config(PolicyConfig(model="tiny-0.3m", critic="shared", lora=lora))
    names = [name for name, _ in policy.named_parameters()]
    assert all("lora" in name or name.startswith("critic.") for name in names)
    adapters = [p for name, p in policy.named_parameters() if "lora_A" in name]
    assert adapters and all(p.shape[0] == 2 for p in adapters)
    assert all("q_proj" in name for name in names if "lora" in name)


def test_a_setting_without_adapters_trains_the_whole_model() -> None:
    policy = CausalLMPolicy.from_config(PolicyConfig(model="tiny-0.3m"))
    assert policy.critic is None
    assert sum(p.numel() for p in policy.parameters()) == 301_664


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ModelError, match=r"tiny-0\.3m"):
        CausalLMPolicy.from_config(PolicyConfig(model="tiny-0.3"))
