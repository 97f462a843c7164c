"""Studies by name, and that of StepPO: equal terms, ablations that change what they say they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.config.studies import find_study, list_study_names
from stepwell.config.study import PlannedRun, StudyConfig, load_study, plan_runs
from stepwell.core.errors import ConfigError
from stepwell.runs.build.recipe import resolve_recipe

SMALL = """
name = "small"
rollouts = 16
[settings]
train = { num_updates = 4, group_size = 1 }
[[environments]]
name = "lake"
base = "frozenlake"
[[environments]]
name = "boxes"
base = "sokoban"
[[variants]]
name = "steppo"
[[variants]]
name = "grpo"
settings = { recipe.name = "grpo", train.group_size = 8 }
[[variants]]
name = "low"
environments = ["lake"]
settings.recipe.credit.gamma = 0.9
[[sweeps]]
name = "gamma"
values = [0.99, 0.9]
lines = { step = ["steppo", "low"] }
[quick]
rollouts = 8
variants = ["steppo", "grpo"]
"""


def planned(text: str, tmp_path: Path) -> list[PlannedRun]:
    file = tmp_path / "small.toml"
    file.write_text(text)
    return plan_runs(load_study(file), tmp_path, tmp_path / "runs")


def test_a_study_is_found_by_name_or_path_and_a_file_of_that_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "steppo" in list_study_names()
    assert find_study("steppo").name == "steppo.toml"
    with pytest.raises(ConfigError, match="did you mean 'steppo"):
        find_study("stepppo")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steppo").write_text(SMALL)
    assert find_study("steppo") == Path("steppo")


def test_the_list_names_every_study_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(list_study_names())
    assert "StepPO: the step as the unit" in "\n".join(printed)


def test_a_dry_run_names_the_runs_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    assert main(["study", "small.toml", "--dry-run", "--only", "lake-*-seed0"]) == 0
    first, lake, *runs = capsys.readouterr().out.splitlines()
    assert first == "small: 3 of 15 runs, in runs/study-small"
    assert lake.startswith("  lake: 1 seed × 256 held-out tasks × 1 attempt: no difference")
    assert [run.split() for run in runs] == [
        ["lake-steppo-seed0", "steppo,", "4", "updates,", "waiting"],
        ["lake-grpo-seed0", "grpo,", "4", "updates,", "waiting"],
        ["lake-low-seed0", "steppo,", "4", "updates,", "waiting"],
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "small.toml"]
    assert main(["study", "small.toml", "--dry-run"]) == 0
    _, lake, boxes, *_ = capsys.readouterr().out.splitlines()
    assert lake.startswith(
        "  lake: 3 seeds × 256 held-out tasks × 1 attempt: finds differences in success from"
    )
    assert boxes.startswith("  boxes: 3 seeds")
    assert main(["study", "small.toml", "--dry-run", "--only", "lak-seed"]) == 2
    assert "no run's name matches 'lak-seed'" in capsys.readouterr().err


def test_rollouts_are_as_many_in_every_update_whatever_the_group(tmp_path: Path) -> None:
    shapes = {
        run.name: (run.config.train.tasks_per_update, run.config.train.group_size)
        for run in planned(SMALL, tmp_path)
        if run.seed == 0
    }
    assert shapes == {
        "lake-steppo-seed0": (16, 1),
        "lake-grpo-seed0": (2, 8),
        "lake-low-seed0": (16, 1),
        "boxes-steppo-seed0": (16, 1),
        "boxes-grpo-seed0": (2, 8),
    }
    short = load_study(tmp_path / "small.toml").shorten()
    runs = plan_runs(short, tmp_path, tmp_path)
    assert {run.config.train.tasks_per_update * run.config.train.group_size for run in runs} == {8}
    assert short.sweeps == ()  # one of its variants is gone
    with pytest.raises(ConfigError, match=r"rollouts \(12\) cannot be divided into groups of 8"):
        planned(SMALL.replace("rollouts = 16", "rollouts = 12"), tmp_path)


def test_an_env_may_have_a_base_of_its_own(tmp_path: Path) -> None:
    envs = {run.env: run.config.env.name for run in planned(SMALL, tmp_path)}
    assert envs == {"lake": "frozenlake", "boxes": "sokoban"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('["lake"]', '["laek"]', "variant low, environments: unknown name 'laek'; did you mean"),
        ('["steppo", "low"]', '["steppo"]', "lines: 'step' names 1 variants for 2 values"),
        ('["steppo", "low"]', '["steppo", "lwo"]', "sweep gamma: unknown name 'lwo'; did you mean 'low'?"),
        ("rollouts = 16", 'tables = ["goldne"]', "tables 1: "),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(old: str, new: str, problem: str, tmp_path: Path) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError) as refusal:
        planned(SMALL.replace(old, new), tmp_path)
    assert problem in str(refusal.value)


# --- that of StepPO ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steppo() -> tuple[StudyConfig, list[PlannedRun]]:
    file = find_study("steppo")
    study = load_study(file)
    return study, plan_runs(study, file.parent, Path("runs"))


def test_every_method_meets_every_env_on_equal_terms(steppo: tuple[StudyConfig, list[PlannedRun]]) -> None:
    runs = steppo[1]
    assert len(runs) == (9 + 4) * 4 * 3 + 4 * 2 * 3
    for run in runs:
        train, recipe = run.config.train, resolve_recipe(run.config.recipe)
        assert train.tasks_per_update * train.group_size == 128
        assert train.group_size == (8 if recipe.needs_groups else 1)
        assert recipe.reward_parts == ("task",) and recipe.kl is None
        assert run.config.agent.context == "observation" and run.config.env.options["size"] == "tiny"
        assert train.num_updates == (0 if run.variant == "react" else 60)
    thinks = {run.config.agent.strategy for run in runs if run.variant == "react"}
    assert thinks == {"free_think"}
    places = {run.env: run.elsewhere for run in runs}
    assert places["household"]["unseen"].env.options["held_out"] == "unseen"
    assert places["multihop"]["out-of-domain"].env.options["domain"] == "out"


def test_ablations_take_away_what_they_say(steppo: tuple[StudyConfig, list[PlannedRun]]) -> None:
    def choices(variant: str) -> tuple[str, str, str, str]:
        recipe = resolve_recipe(next(run.config.recipe for run in steppo[1] if run.variant == variant))
        assert recipe.credit is not None and recipe.value is not None
        loss = recipe.loss.kwargs
        return recipe.credit.name, recipe.value.sites, loss["ratio"], loss["aggregate"]

    assert choices("steppo") == ("step_gae", "state", "step", "step_mean")
    assert choices("without-step-gae") == ("token_gae", "tokens", "step", "step_mean")
    assert choices("without-step-ratio") == ("step_gae", "state", "token", "step_mean")
    assert choices("without-both") == ("token_gae", "tokens", "token", "step_mean")
    assert choices("steppo-token-mean") == ("step_gae", "state", "step", "token_mean")
    assert choices("ppo") == ("token_gae", "tokens", "token", "token_mean")


def test_the_discounts_of_the_sweep_are_those_of_its_variants(
    steppo: tuple[StudyConfig, list[PlannedRun]],
) -> None:
    study, runs = steppo
    (sweep,) = study.sweeps
    for variants in sweep.lines.values():
        recipes = [resolve_recipe(next(r.config.recipe for r in runs if r.variant == v)) for v in variants]
        assert [recipe.credit and recipe.credit.kwargs["gamma"] for recipe in recipes] == [0.99, 0.97, 0.95]


def test_the_short_form_is_an_env_and_three_methods_with_fewer_rollouts(
    steppo: tuple[StudyConfig, list[PlannedRun]],
) -> None:
    runs = plan_runs(steppo[0].shorten(), Path(), Path("runs"))
    assert [run.name for run in runs] == [f"household-{name}-seed0" for name in ("steppo", "ppo", "grpo")]
    assert {run.config.train.tasks_per_update * run.config.train.group_size for run in runs} == {64}
