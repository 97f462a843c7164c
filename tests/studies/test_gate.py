"""The gate of a study: measured before anything is learnt, and told when it is not passed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.studies.study_files import study_of

from stepwell.config.run import RewardConfig
from stepwell.config.study import load_study, plan_runs
from stepwell.config.training import WarmStartConfig
from stepwell.core import ConfigError, Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.monitors.base import LogEntry
from stepwell.runs.build.components import Components
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.build.warm_starts import describe_goal, has_goal, is_warm, make_cache_key
from stepwell.runs.loop.rollout_metrics import measure_descriptions
from stepwell.studies.gate import list_failures, make_gate
from stepwell.studies.measures import measure_gate
from stepwell.studies.pages import GATE_FAILED, write_table
from stepwell.studies.results import Results, RunResult

FOLDER = Path(__file__).parent.parent.parent / "studies"
GATED = """
name = "gated"
seeds = [3, 4]
[settings]
train = { num_updates = 50, tasks_per_update = 4, group_size = 1, critic_only_updates = 10 }
[gate]
explained = 0.3
grounding = 0.9
settings.train.num_updates = 11
[[variants]]
name = "full"
[[variants]]
name = "grpo"
settings.recipe.name = "grpo"
"""


def update(number: int, **values: float) -> LogEntry:
    return LogEntry("update", number, 0.0, 0, dict(values))


def test_the_first_update_that_changes_the_policy_is_what_the_gate_reads() -> None:
    frozen = [update(n, explained_variance=-1.0, grounding_share=0.2) for n in (1, 2)]
    trained = {"loss/policy": 0.1, "explained_variance": 0.41, "grounding_share": 0.93}
    later = {"loss/policy": 0.1, "explained_variance": 0.8, "grounding_share": 0.1}
    assert measure_gate([*frozen, update(3, **trained), update(4, **later)]) == {
        "explained": 0.41,
        "grounding": 0.93,
    }
    assert measure_gate(frozen) == {} == measure_gate([])


def results_of(tmp_path: Path, full: dict[str, float], grpo: dict[str, float]) -> Results:
    study = study_of(GATED, tmp_path)
    runs = [
        RunResult(f"lake-{name}-seed3", "lake", name, 3, "finished", gate=gate)
        for name, gate in (("full", full), ("grpo", grpo))
    ]
    return Results(study, False, runs, {"lake": []}, {"lake": 0.0}, [], [])


def test_what_is_missing_is_told_for_each_variant_and_stands_in_the_table(tmp_path: Path) -> None:
    results = results_of(tmp_path, {"explained": 0.12, "grounding": 0.95}, {"grounding": 0.5})
    failures = list_failures(results)
    assert failures == [
        "lake: full: the critic explains 0.12, below 0.3",
        "lake: grpo: descriptions are right in 0.50, below 0.9",
    ]
    assert GATE_FAILED in write_table(results)
    assert list_failures(results_of(tmp_path, {"explained": 0.3, "grounding": 0.9}, {})) == []


def test_the_gate_runs_the_first_seed_and_few_updates(tmp_path: Path) -> None:
    runs = plan_runs(make_gate(study_of(GATED, tmp_path)), tmp_path, tmp_path / "runs")
    assert [(run.seed, run.variant, run.config.train.num_updates) for run in runs] == [
        (3, "full", 11),
        (3, "grpo", 11),
    ]
    with pytest.raises(ConfigError, match=r"has no \[gate\]"):
        make_gate(study_of(GATED, tmp_path).model_copy(update={"gate": None}))


def episode(*scores: float) -> Trajectory:
    steps = []
    for score in scores:
        step = Step(TokenState(np.array([1], np.int32)), TokenAction(np.array([2], np.int32)), np.zeros(1))
        step.info = {"parts": {"task": 1.0, "grounding": 0.5 * score}}
        steps.append(step)
    return Trajectory(Task("lake", {"n": len(scores)}), steps, Status.SUCCESS)


def test_descriptions_are_measured_whether_they_are_rewarded_or_not() -> None:
    weights = RewardConfig(grounding=0.5)
    found = measure_descriptions([episode(1.0, 0.5), episode(0.0)], weights)
    assert found == {"grounding_share": pytest.approx(0.5)}
    assert measure_descriptions([], weights) == {}


def test_a_warm_start_may_wait_until_descriptions_are_right() -> None:
    warm = WarmStartConfig(num_demos=8, stop_at=0.3, stop_at_grounding=0.9)
    assert has_goal(warm) and has_goal(WarmStartConfig(stop_at_grounding=0.5))
    assert not is_warm(warm, {"success": 0.5, "grounding_share": 0.89})
    assert is_warm(warm, {"success": 0.5, "grounding_share": 0.9})
    assert describe_goal(warm) == "descriptions are 90% right and 30% of training tasks are solved"


@pytest.mark.slow
def test_the_five_worlds_of_vagen_meet_every_method_from_the_same_start() -> None:
    study = load_study(FOLDER / "vagen_environments.toml")
    runs = plan_runs(study, FOLDER, Path("runs"))
    worlds = {run.config.env.name for run in runs}
    assert worlds == {"frozenlake", "sokoban", "navigation", "primitive_skill", "svg"}
    main = [variant.name for variant in study.variants if not variant.table]
    assert main == [
        "start", "vagen-full", "vagen-base", "bi-level-only", "reward-only",
        "turn-ppo", "grpo", "vanilla-ppo",
    ]  # fmt: skip
    arms = {run.variant: run.config for run in runs if run.env == "sokoban" and run.seed == 0}
    starts = {
        config.warm_start.model_dump_json() + config.policy.model_dump_json()
        for name, config in arms.items()
        if name in main
    }
    assert len(starts) == 1
    recipes = {name: resolve_recipe(config.recipe) for name, config in arms.items()}
    assert recipes["turn-ppo"].value is not None and recipes["turn-ppo"].value.sites == "state"
    assert "grounding" in recipes["reward-only"].reward_parts
    assert (
        recipes["bi-level-only"].credit is not None and recipes["bi-level-only"].credit.name == "bilevel_gae"
    )
    assert {config.train.minibatches for config in arms.values()} == {4}
    assert all(recipe.kl is not None for recipe in recipes.values())
    assert study.gate is not None and (study.gate.explained, study.gate.grounding) == (0.3, 0.9)


@pytest.mark.slow
def test_all_seeds_and_methods_of_the_second_study_share_one_start() -> None:
    study = load_study(FOLDER / "vagen_three_environments.toml")
    strategies = {variant.name for variant in study.variants if variant.table.startswith("Strategies")}
    keys: dict[str, set[str]] = {}
    for run in plan_runs(study, FOLDER, Path("runs")):
        if run.variant not in strategies:
            keys.setdefault(run.env, set()).add(make_cache_key(Components(run.config)))
    assert keys.keys() == {"navigation", "primitive_skill", "svg"}
    assert all(len(found) == 1 for found in keys.values())
