"""The preset of WebRL for a pretrained model has the paper's phases."""

from __future__ import annotations

import pytest

import stepwell as sw
from stepwell.cli.command import read_settings
from stepwell.config.loading import load_config
from stepwell.runs.build.phases import find_phase_length
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.plan.run_plan import plan_run


def test_webrl_has_eight_phases_of_500_tasks_that_are_played_once() -> None:
    config = load_config("webrl", [])
    recipe = resolve_recipe(config.recipe)
    length = find_phase_length(config, recipe)
    assert recipe.curriculum and recipe.replay and length == 4
    assert config.train.num_updates == 8 * length and config.curriculum.tasks_per_phase == 500
    assert length * config.train.tasks_per_update * config.train.group_size == 500
    assert config.policy.model == "smollm2-135m" and config.sampling.temperature == 1.0


def test_webrl_tiny_has_four_phases_of_64_tasks() -> None:
    config = load_config("webrl-tiny", [])
    recipe = resolve_recipe(config.recipe)
    length = find_phase_length(config, recipe)
    assert length is not None and config.train.num_updates == 4 * length
    assert config.curriculum.tasks_per_phase == 64 and config.train.num_tasks >= 4 * 64
    assert config.train.group_size == 1 and recipe.credit is not None and recipe.credit.kwargs["gamma"] == 1.0


@pytest.mark.parametrize(
    ("preset", "instead", "phases"),
    [("web", "webrl", "8 of 4 updates, 500 tasks"), ("web-tiny", "webrl-tiny", "4 of 4 updates, 64 tasks")],
)
def test_web_with_recipe_webrl_has_webrls_settings(
    preset: str, instead: str, phases: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = read_settings([preset, "recipe.name=webrl", "seed=7"])
    assert f"those of the preset {instead}" in capsys.readouterr().err
    assert config == load_config(instead, ["recipe.name=webrl", "seed=7"])
    recipe = resolve_recipe(config.recipe)
    assert recipe.kl is None and recipe.entropy_coef == 0 and config.train.group_size == 1
    assert config == sw.load_config(preset, recipe={"name": "webrl"}, seed=7)
    assert read_settings([preset, "recipe.name=grpo"]) == load_config(preset, ["recipe.name=grpo"])
    assert capsys.readouterr().err == ""


def test_the_dry_run_shows_the_phases_and_warns_of_what_does_not_belong() -> None:
    plan = plan_run(read_settings(["web-tiny", "recipe.name=webrl"]))
    assert "phases" in plan and "4 of 4 updates, 64 tasks each; new tasks: evolve" in plan
    assert "no KL" in plan and "second KL" not in plan
    mixed = plan_run(load_config("web-tiny", ["recipe.name=webrl", "policy.critic=own"]))
    assert "second KL term: set recipe.kl_coef=0" in mixed and "train.group_size is 8" in mixed
