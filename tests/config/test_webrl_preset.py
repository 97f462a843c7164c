"""The preset of WebRL for a pretrained model has the paper's phases."""

from __future__ import annotations

from stepwell.config.loading import load_config
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.loop.task_feeds import find_phase_length


def test_webrl_has_eight_phases_of_500_tasks_that_are_played_once() -> None:
    config = load_config("webrl", [])
    recipe = resolve_recipe(config.recipe)
    length = find_phase_length(config, recipe)
    assert recipe.curriculum and recipe.replay and length == 4
    assert config.train.num_updates == 8 * length and config.curriculum.tasks_per_phase == 500
    assert length * config.train.tasks_per_update * config.train.group_size == 500
    assert config.policy.model == "smollm2-135m" and config.sampling.temperature == 1.0
