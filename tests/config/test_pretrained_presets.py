"""Presets of SmolLM2, and the study of them: measured settings, guards on, one change per diagnosis."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.config.loading import load_config
from stepwell.config.study import load_study, plan_runs
from stepwell.runs.build.recipe import resolve_recipe

FOLDER = Path(__file__).parent.parent.parent / "studies"
NAMES = ("household", "shop", "multihop_qa", "frozenlake", "frozenlake-visual")


@pytest.mark.parametrize("name", NAMES)
def test_presets_of_smollm2_learn_in_small_steps_with_guards(name: str) -> None:
    config = load_config(f"{name}-smollm2", [])
    train = config.train
    assert config.policy.model.startswith("smollm2") and config.policy.critic == "own"
    assert (train.tasks_per_update * train.group_size, train.minibatches) == (256, 4)
    rates = (5e-5, 2e-4) if name == "household" else (3e-5, 1e-4)
    assert (train.optimizer.learning_rate, train.critic_learning_rate) == rates
    assert train.optimizer.kind == "adamw" and train.schedule != "constant"
    assert train.guard.max_kl is not None and train.guard.on_fall == "roll_back"
    recipe = resolve_recipe(config.recipe)
    assert recipe.kl is not None and recipe.kl.coef == 0.001
    assert config.agent.guide


def test_each_diagnosis_changes_one_thing_on_the_way_from_steppo_to_ppo() -> None:
    study = load_study(FOLDER / "pretrained.toml")
    runs = plan_runs(study, FOLDER, Path("runs"))
    assert len([run for run in runs if run.variant in ("ppo", "steppo", "rloo")]) == 3 * 3 * 5
    assert {run.config.train.optimizer.learning_rate for run in runs} == {3e-5}  # one rate for all methods

    def choices(variant: str) -> tuple[object, ...]:
        recipe = resolve_recipe(next(run.config.recipe for run in runs if run.variant == variant))
        assert recipe.credit is not None
        loss, credit = recipe.loss.kwargs, recipe.credit
        clock = credit.kwargs.get("clock", "token")
        return credit.name, credit.kwargs["gamma"], clock, loss["ratio"], loss["aggregate"]

    steppo, ppo = choices("steppo"), choices("ppo")
    assert steppo == ("step_gae", 0.99, "token", "step", "step_mean")
    assert ppo == ("token_gae", 0.99, "token", "token", "token_mean")

    def changed(variant: str, beside: tuple[object, ...]) -> list[int]:
        return [i for i, (a, b) in enumerate(zip(choices(variant), beside, strict=True)) if a != b]

    assert changed("steppo-token-mean", steppo) == [4]
    assert changed("steppo-token-ratio", steppo) == [3]
    assert changed("step-credit-alone", ppo) == [0]
    assert changed("ppo-step-clock", ppo) == [2]
    assert changed("steppo-1", steppo) == [1] == changed("ppo-1", ppo)
