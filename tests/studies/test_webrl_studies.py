"""The studies of WebRL: every arm is a run that can be built, and changes what its name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.config.study import PlannedRun, load_study, plan_runs
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.loop.replay import check_replay, is_replay_wanted
from stepwell.studies.selection import read_choices

FOLDER = Path(__file__).parent.parent.parent / "studies"


def plan(name: str) -> list[PlannedRun]:
    return plan_runs(load_study(FOLDER / f"{name}.toml"), FOLDER, Path("runs"))


@pytest.mark.parametrize(
    "name", ["webrl_tiny", "webrl_small", "webrl_smollm2", "webrl_warmup", "webrl_baselines"]
)
def test_every_arm_has_a_recipe_that_its_settings_allow(name: str) -> None:
    for run in plan(name):
        recipe = resolve_recipe(run.config.recipe)
        assert recipe.reward_parts == ("outcome",)
        if is_replay_wanted(run.config, recipe):
            check_replay(run.config, recipe)


def test_arms_of_the_web_study_differ_in_what_they_name() -> None:
    arms = {run.variant: run.config for run in plan("webrl_tiny") if run.seed == 0}
    recipes = {name: resolve_recipe(config.recipe) for name, config in arms.items()}
    assert recipes["webrl"].loss.name == "webrl_loss" and recipes["webrl"].replay
    assert recipes["no-kl"].loss.name == "reinforce_loss" and not recipes["no-kl"].needs_reference
    assert recipes["kl-distance"].loss.name == "awr_loss" and recipes["kl-distance"].whiten is None
    assert arms["no-kl-no-replay"].replay.enabled is False
    assert recipes["beta-10"].loss.kwargs["beta"] == 10.0
    assert arms["critic-without-replay"].replay.teaches_critic is False
    assert arms["webrl-judged"].outcome.judge == ("model:runs/webrl-orm",)
    assert {name for name, config in arms.items() if config.offline.pool} == {"awr", "filtered-bc"}
    assert arms["sft"].train.num_updates == 0


def test_arms_of_the_small_web_study_differ_in_what_they_name() -> None:
    arms = {run.variant: run.config for run in plan("webrl_small") if run.seed == 0}
    recipes = {name: resolve_recipe(config.recipe) for name, config in arms.items()}
    webrl = {name for name, recipe in recipes.items() if recipe.name == "webrl"}
    ablations = {"no-replay", "no-kl", "no-kl-no-replay", "no-curriculum", "webrl-judged"}
    parts = {"band-all", "band-known", "band-far", "failures-in-buffer", "critic-without-replay"}
    assert webrl == {"webrl", "discount", "beta-0.3", "beta-0.1"} | ablations | parts
    bands = {name: (arms[name].replay.min_perplexity, arms[name].replay.max_perplexity) for name in parts}
    assert bands["band-known"][1] == pytest.approx(bands["failures-in-buffer"][0], abs=1e-4)
    assert bands["band-far"] == (2.0, 1e9)
    assert {name for name in webrl if arms[name].replay.with_failures} == {"failures-in-buffer"}
    assert {name for name in webrl if not arms[name].replay.teaches_critic} == {"critic-without-replay"}
    assert arms["digirl-curriculum"].curriculum.generator == "evolve"
    discounts = {name: recipes[name].credit.kwargs["gamma"] for name in webrl if recipes[name].credit}
    assert {name for name, gamma in discounts.items() if gamma != 1.0} == {"discount"}
    assert {name for name in webrl if not recipes[name].needs_reference} == {"no-kl", "no-kl-no-replay"}
    assert {name for name, config in arms.items() if config.replay.enabled is False} == {
        "no-replay",
        "no-kl-no-replay",
    }
    # the reference of a phase, without the tasks of one: the supply is as large as a phase
    assert arms["no-curriculum"].curriculum.generator == "fresh"
    assert arms["no-curriculum"].train.num_tasks == arms["no-curriculum"].curriculum.tasks_per_phase
    assert arms["rloo"].train.group_size * arms["rloo"].train.tasks_per_update == 256
    assert {name for name, config in arms.items() if config.offline.pool} == {"awr", "filtered-bc"}


def test_arms_with_smollm2_differ_in_what_they_name() -> None:
    arms = {run.variant: run.config for run in plan("webrl_smollm2") if run.seed == 0}
    assert {config.policy.model for config in arms.values()} == {"smollm2-135m"}
    losses = {
        name: resolve_recipe(arms[name].recipe).loss for name in ("webrl", "no-curriculum", "fresh-tasks")
    }
    assert len({(loss.name, str(loss.kwargs)) for loss in losses.values()}) == 1
    assert arms["webrl"].curriculum.generator != "fresh" == arms["no-curriculum"].curriculum.generator
    assert arms["no-curriculum"].train.num_tasks == arms["no-curriculum"].curriculum.tasks_per_phase
    assert arms["fresh-tasks"].train.num_tasks >= 5 * arms["fresh-tasks"].curriculum.tasks_per_phase
    assert {name for name, config in arms.items() if config.offline.pool} == {"filtered-bc", "awr"}
    assert arms["digirl"].curriculum.enabled is False
    assert arms["digirl-curriculum"].curriculum.generator == "evolve"
    recipes = {name: resolve_recipe(config.recipe) for name, config in arms.items()}
    webrl = {name for name, recipe in recipes.items() if recipe.name == "webrl"}
    assert {name for name in webrl if not recipes[name].needs_reference} == {"no-kl", "no-kl-no-replay"}
    off = {name for name, config in arms.items() if config.replay.enabled is False}
    assert off == {"no-replay", "no-kl-no-replay"}


def test_arms_of_the_tiny_web_study_differ_in_what_they_name() -> None:
    arms = {run.variant: run.config for run in plan("web_tiny") if run.seed == 0}
    assert arms["adamw"].train.optimizer.kind == "adamw" and arms["rloo"].train.optimizer.kind == "muon"
    assert arms["ten-tasks"].train.num_tasks == 10
    assert arms["imitation"].train.num_updates == 0 and arms["imitation"].warm_start.stop_at == 0.95
    assert {arms[name].policy.model for name in ("tiny-1m", "imitation-1m")} == {"tiny-1m"}
    assert resolve_recipe(arms["self-imitation"].recipe).loss.name == "filtered_bc_loss"
    assert is_replay_wanted(arms["self-imitation"], resolve_recipe(arms["self-imitation"].recipe))
    assert arms["steppo"].policy.critic == "shared" and arms["rloo"].policy.critic == "none"


def test_arms_of_the_study_with_a_warm_up_take_the_pace_of_webrl() -> None:
    study = load_study(FOLDER / "webrl_warmup.toml")
    assert study.select is not None and not set(study.select.seeds) & set(study.seeds)
    assert {variant.choice_of for variant in study.variants} == {None, "webrl"}
    arms = {run.variant: run.config for run in plan("webrl_warmup") if run.seed == 0}
    recipes = {name: resolve_recipe(config.recipe) for name, config in arms.items()}
    assert {name for name in arms if not recipes[name].needs_reference} == {"no-kl", "no-kl-no-replay"}
    assert {name for name in arms if arms[name].outcome.is_judged} == {"webrl-judged"}
    former = {run.variant: run.config for run in plan("webrl_smollm2") if run.seed == 0}
    # what differs is the trainer's schedule, and the choice; the budget changes nothing but memory
    same_budget = {"token_budget": former["webrl"].train.token_budget}
    assert arms["webrl"].train.model_copy(update=same_budget) == former["webrl"].train
    assert {name for name in arms if arms[name].train.critic_epochs} == {"critic-first"}


@pytest.mark.parametrize("name", ["webrl_small", "webrl_warmup"])
def test_the_choices_of_a_study_are_kept_and_fit_its_file(name: str) -> None:
    study = load_study(FOLDER / f"{name}.toml")
    file = FOLDER.parent / "benchmarks" / "results" / name / "selected.json"
    chosen = read_choices(study, file)
    assert plan_runs(study, FOLDER, Path("runs"), chosen=chosen)
