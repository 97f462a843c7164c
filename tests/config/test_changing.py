"""Which settings may change when a run goes on."""

from __future__ import annotations

import pytest

from stepwell.config.changing import RULES, find_changes, require_sound
from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.config.schema import walk_settings
from stepwell.core import ConfigError


def test_every_setting_but_the_place_is_decided() -> None:
    for setting in walk_settings(RunConfig):
        if setting.key not in ("name", "folder"):
            assert any(setting.key == name or setting.key.startswith(f"{name}.") for name in RULES), (
                setting.key
            )


def test_every_rule_is_about_a_setting() -> None:
    keys = [setting.key for setting in walk_settings(RunConfig)]
    for name in RULES:
        assert any(key == name or key.startswith(f"{name}.") for key in keys), name


def test_changes_are_found_in_free_tables_and_where_nothing_was() -> None:
    old = load_config(None, ["env.options.size=3", "policy.lora={rank=2}"])
    new = load_config(None, ["env.options.slippery=true", "train.max_env_steps=5", "name=other"])
    told = {str(change) for change in find_changes(old.model_dump(mode="json"), new)}
    assert "env.options.size 3 -> none" in told and "env.options.slippery none -> true" in told
    assert "train.max_env_steps none -> 5" in told and "policy.lora.rank 2 -> none" in told
    assert not any(change.startswith("name") for change in told)
    assert find_changes(old.model_dump(mode="json"), old) == []


def test_a_setting_that_is_newer_than_the_run_had_its_default() -> None:
    stored = RunConfig().model_dump(mode="json")
    del stored["checkpoint"]["every_minutes"]
    assert find_changes(stored, RunConfig()) == []


def test_all_refusals_come_at_once_and_the_longest_rule_decides() -> None:
    wish = ["train.group_size=7", "train.optimizer.learning_rate=1e-5", "train.optimizer.beta2=0.5"]
    changes = find_changes(RunConfig().model_dump(mode="json"), load_config(None, wish))
    with pytest.raises(ConfigError) as raised:
        require_sound(changes, "runs/lake")
    told = str(raised.value)
    assert "train.group_size 4 -> 7" in told and "train.optimizer.beta2 0.99 -> 0.5" in told
    assert "learning_rate" not in told and "policy.model=runs/lake/checkpoints/best" in told


def test_what_a_stopped_run_of_ones_own_agent_is_told_to_raise_may_be_raised() -> None:
    wish = ["own_agent.max_failed_share=1", "own_agent.memory_mb=9000", "own_agent.learn_from_errors=true"]
    changes = find_changes(RunConfig().model_dump(mode="json"), load_config(None, wish))
    require_sound(changes, "runs/lake")
    assert len(changes) == 3
