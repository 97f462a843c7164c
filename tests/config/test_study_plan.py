"""What a study plans: every variant in every environment with every seed; mistakes in its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.studies.study_files import SMALL, planned, study_of

from stepwell.config.renamed import merge_tables
from stepwell.config.study import load_study, plan_runs
from stepwell.config.writing import flatten_tables
from stepwell.core.errors import ConfigError
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.studies.study import run_study

ROOT = Path(__file__).parent.parent.parent


def test_every_variant_meets_every_env_before_the_next_seed_begins(tmp_path: Path) -> None:
    names = [run.name for run in planned(SMALL, tmp_path)]
    assert names == [
        f"{env}-{variant}-seed{seed}"
        for seed in (0, 1)
        for env in ("lake", "big-lake")
        for variant in ("steppo", "grpo")
    ]


def test_variants_change_envs_which_change_what_all_share(tmp_path: Path) -> None:
    runs = {run.name: run.config for run in planned(SMALL, tmp_path, device="cuda")}
    config = runs["big-lake-grpo-seed1"]
    assert (config.env.options["size"], config.env.options["hole_rate"]) == (5, 0.1)
    assert (config.recipe.name, config.train.group_size, config.train.tasks_per_update) == ("grpo", 2, 4)
    assert (config.recipe.kl_coef, config.policy.device, config.seed) == (0.0, "cuda", 1)
    assert runs["lake-steppo-seed0"].train.group_size == 1
    assert not config.monitor.console and not config.monitor.tensorboard
    assert Path(config.folder) / str(config.name) == tmp_path / "runs" / "big-lake-grpo-seed1"


def test_the_short_form_keeps_what_it_names_and_wins_over_variants(tmp_path: Path) -> None:
    runs = plan_runs(study_of(SMALL, tmp_path).shorten(), tmp_path, tmp_path)
    assert [run.name for run in runs] == ["lake-grpo-seed0"]
    assert runs[0].config.train.num_updates == 1 and runs[0].config.train.group_size == 2


def test_a_study_without_envs_is_in_that_of_its_base(tmp_path: Path) -> None:
    text = 'name = "one"\nbase = "sokoban"\nseeds = [3]\n[[variants]]\nname = "plain"\n'
    assert [run.name for run in planned(text, tmp_path)] == ["sokoban-plain-seed3"]


def test_a_base_file_is_looked_for_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nnum_updates = 7\n")
    text = 'name = "one"\nbase = "mine.toml"\n[[variants]]\nname = "plain"\n'
    assert {run.config.train.num_updates for run in planned(text, tmp_path)} == {7}


def test_a_budget_is_the_same_for_all_and_updates_are_only_its_cap(tmp_path: Path) -> None:
    text = SMALL.replace("num_updates = 4, ", "").replace(
        'name = "lake"\n', 'name = "lake"\nenv_steps = 100\n'
    )
    trains = {run.name: run.config.train for run in planned(text, tmp_path)}
    assert trains["lake-steppo-seed0"].max_env_steps == trains["lake-grpo-seed1"].max_env_steps == 100
    assert trains["lake-steppo-seed0"].num_updates == 25  # one action per episode: 100 / 4
    assert trains["lake-grpo-seed0"].num_updates == 13  # 100 / 8, the last not full
    assert trains["big-lake-steppo-seed0"].max_env_steps is None
    given = {
        run.name: run.config.train
        for run in planned(SMALL.replace("seeds = [0, 1]", "env_steps = 100"), tmp_path)
    }
    assert {(train.max_env_steps, train.num_updates) for train in given.values()} == {(100, 4)}


def test_none_takes_a_setting_back(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nmax_seconds = 7.0\n")
    text = SMALL.replace('"frozenlake"', '"mine.toml"')
    assert planned(text, tmp_path)[0].config.train.max_seconds == 7.0
    text = text.replace("num_updates = 4", 'max_seconds = "none"')
    assert planned(text, tmp_path)[0].config.train.max_seconds is None


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("seeds = [0, 1]", "seeds = []", "seeds: "),
        ("seeds = [0, 1]", "seed = [0, 1]", "seed: unknown key; did you mean 'seeds'?"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "seeds: 1 appears twice"),
        ('name = "grpo"\n', 'name = "grpo"\ngruop = "x"\n', "variants 2 gruop: unknown key; did you"),
        ('name = "grpo"\n', 'name = "a/b"\n', "variants 2 name: 'a/b' becomes a folder name"),
        ('name = "grpo"\n', 'name = "steppo"\n', "variants: steppo appears twice"),
        ('["grpo"]', '["gpro"]', "quick.variants: unknown name 'gpro'; did you mean 'grpo'?"),
        ('name = "small"', "", "name: is missing"),
        ('name = "small"', 'name = "small"\nbaseline = "ppo"', "baseline: unknown name 'ppo'"),
        ("train.group_size = 2", "train.gruop = 2", "grpo on lake: preset frozenlake: train.gruop: unk"),
        ("train.group_size = 2", "train.group_size = 0", "variant grpo on lake: "),
        ("seeds = [0, 1]", "x = [", "is not valid TOML"),
        ('base = "frozenlake"', 'base = "nowhere.toml"', "'nowhere.toml' is neither a file nor a preset"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(old: str, new: str, problem: str, tmp_path: Path) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError, match=re.escape(problem)):
        planned(SMALL.replace(old, new), tmp_path)


def test_a_schedule_cannot_end_where_the_number_of_updates_is_open(tmp_path: Path) -> None:
    text = SMALL.replace("num_updates = 4", 'schedule = "linear"').replace(
        "[settings]", "env_steps = 9\n[settings]"
    )
    with pytest.raises(ConfigError, match=r"set train\.num_updates, or train\.schedule to constant"):
        planned(text, tmp_path)


def test_a_recipe_that_nobody_knows_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SMALL.replace('"grpo", train', '"gpro", train'))
    with pytest.raises(ConfigError, match=r"variant grpo on lake: recipe\.name: there is no recipe 'gpro'"):
        run_study(tmp_path / "study.toml", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


tables = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
).filter(lambda table: isinstance(table, dict))


@given(tables, tables)
def test_merging_keeps_all_of_the_upper_table_and_what_it_does_not_touch(below: Any, above: Any) -> None:
    result = dict(flatten_tables(merge_tables(below, above)))
    upper = dict(flatten_tables(above))
    assert upper.items() <= result.items()
    for path, value in flatten_tables(below):
        is_touched = any(path[: len(p)] == p or p[: len(path)] == path for p in upper)
        if not is_touched:
            assert result[path] == value


def test_the_recipe_study_compares_all_recipes_on_equal_terms() -> None:
    study = load_study(ROOT / "studies" / "recipes.toml")
    runs = plan_runs(study, ROOT / "studies", Path("runs"))
    assert len(runs) == (12 + 2) * 2 * 3
    assert {run.config.train.tasks_per_update * run.config.train.group_size for run in runs} == {128}
    for run in runs:
        recipe = resolve_recipe(run.config.recipe)
        assert recipe.name == run.variant.removesuffix("-half")
        assert (run.config.train.group_size == 8) == recipe.needs_groups
        assert recipe.reward_parts == ("task", "format") and run.config.rewards.scale == 0.1
    for env in study.environments:
        assert {run.config.train.max_env_steps for run in runs if run.env == env.name} == {env.env_steps}
    assert len(plan_runs(study.shorten(), ROOT / "studies", Path("runs"))) == 3


def test_the_example_of_the_page_is_a_study(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "studies.md").read_text()
    example = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)[0]
    runs = {run.name: run.config for run in planned(example, tmp_path)}
    assert len(runs) == 2 * 2 * 3
    assert runs["large-near-seed2"].recipe.credit == {"lam": 0.5}
    assert runs["large-near-seed2"].train.max_env_steps == 200_000
    assert runs["small-far-seed0"].train.max_env_steps == 100_000
    assert len(plan_runs(study_of(example, tmp_path).shorten(), tmp_path, tmp_path)) == 2
