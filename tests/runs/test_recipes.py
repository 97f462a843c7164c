"""Every recipe trains: finite, and weights move; settings change its choices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.runs.small import played, small_config, timeless, warmed_model
from tests.variants import keep_quick

from stepwell.algos.recipes import RECIPES
from stepwell.config.run import RecipeConfig
from stepwell.core import ConfigError
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.run import train


def read_weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


# In the default tier one for each combination of critic, reference and KL.
@pytest.mark.parametrize(
    "name", keep_quick(RECIPES, ("steppo", "grpo", "webrl", "awr", "filtered-bc").__contains__)
)
def test_every_recipe_makes_two_updates_that_move_the_weights(name: str, tmp_path: Path) -> None:
    settings = ["eval.num_tasks=0"]
    if name == "vagen-full":
        settings.append("recipe.reward_parts=['task', 'format']")
    if name in ("filtered-bc", "webrl", "digirl", "awr"):  # paid for success alone, which is rare here
        settings.append("recipe.reward_parts=['format']")
        settings.append("rewards.format=1.0")
        settings.append("rewards.scale=0.5")
    folder = train(small_config(f"recipe.name={name}", *settings, folder=tmp_path))
    updates = [entry for entry in timeless(folder) if entry.kind == "update"]
    assert [entry.update for entry in updates] == [1, 2]
    for entry in updates:
        assert all(math.isfinite(value) for value in entry.values.values()), entry
        assert entry.values["grad_norm"] > 0
    assert ("loss/value" in updates[0].values) == RECIPES[name].needs_critic
    assert ("kl" in updates[0].values) == (RECIPES[name].kl is not None)
    assert (folder / "reference.safetensors").exists() == RECIPES[name].needs_reference
    start = read_weights(Path(warmed_model()))
    after = read_weights(folder / "checkpoints/update-000002")
    assert start.keys() == after.keys()
    moved = [key for key in start if not torch.equal(start[key], after[key])]
    assert len(moved) > len(start) / 2


def test_settings_change_slots_and_leave_the_others() -> None:
    assert resolve_recipe(RecipeConfig(name="grpo")) is RECIPES["grpo"]
    changed = resolve_recipe(
        RecipeConfig(name="steppo", credit={"lam": 0.9}, loss={"clip_high": 0.3}, kl_coef=0.0, value_coef=1.0)
    )
    assert changed.credit is not None and changed.credit.kwargs == {"gamma": 0.99, "lam": 0.9}
    assert changed.loss.kwargs["clip_high"] == 0.3 and changed.loss.kwargs["clip_low"] == 0.2
    assert changed.kl is None and changed.value_coef == 1.0 and changed.whiten == "steps"
    held = resolve_recipe(RecipeConfig(name="webrl", kl_coef=0.2))
    assert held.kl is not None and (held.kl.estimator, held.kl.coef, held.kl.kl_in) == ("k3", 0.2, "loss")
    turn = resolve_recipe(RecipeConfig(name="turn-ppo", credit={"site": "end"}))
    assert turn.value is not None and (turn.value.sites, turn.whiten) == ("end", "steps")
    assert RECIPES["turn-ppo"].value is not None and RECIPES["turn-ppo"].value.sites == "state"
    moved = resolve_recipe(RecipeConfig(name="ppo", kl_in="reward"))
    assert moved.kl is not None and (moved.kl.coef, moved.kl.kl_in) == (0.001, "reward")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "sft", "credit": {"gamma": 1.0}}, "sft has no credit function"),
        ({"name": "steppo", "credit": {"lamda": 1.0}}, "step_gae has no argument 'lamda'"),
        ({"name": "grpo", "kl_in": "reward"}, "never reads token rewards"),
    ],
)
def test_a_slot_that_cannot_be_changed_so_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_recipe(RecipeConfig.model_validate(settings))


def test_progress_that_an_environment_measures_can_be_rewarded_by_any_recipe(tmp_path: Path) -> None:
    rewarded = (
        "recipe.name=grpo",
        'recipe.reward_parts=["process"]',
        "rewards.process=2.0",
        "rewards.scale=1",
    )
    train(small_config(*rewarded, "train.num_updates=1", folder=tmp_path))
    parts = [step.reward_parts for t in played(tmp_path / "run", 1) for step in t.steps]
    assert {tuple(part) for part in parts} == {("process",)}
    cells = {part["process"] / 2.0 for part in parts}  # nearer or farther, of a turn together
    assert cells != {0.0} and all(value.is_integer() for value in cells)
