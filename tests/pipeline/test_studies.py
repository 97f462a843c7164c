"""Studies: what is planned, how sittings end and go on, and what the figures say."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stepwell.config.study import PlannedRun, StudyConfig, flattened, load_study, merged, plan_runs
from stepwell.core.errors import ConfigError
from stepwell.monitors.base import Entry, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor, read_entries
from stepwell.monitors.summary import Score, Summary, write_summary
from stepwell.pipeline.parts import resolve_recipe
from stepwell.pipeline.studies import _adopt, _hold, run_study
from stepwell.pipeline.study_pages import write_pages
from stepwell.pipeline.study_progress import how_far
from stepwell.pipeline.study_results import Figure, Results, area, collect, mean_curve, status_of

ROOT = Path(__file__).parent.parent.parent
SMALL = """
name = "small"
base = "frozenlake"
seeds = [0, 1]
[settings]
policy.model = "tiny-0.3m"
sampling.max_tokens = 8
warm_start.num_demos = 8
eval = { every = 2, num_tasks = 8 }
train = { num_updates = 4, tasks_per_update = 4, group_size = 1 }
[[worlds]]
name = "lake"
settings.env.options.size = 4
[[worlds]]
name = "big-lake"
settings.env.options.size = 5
[[variants]]
name = "steppo"
[[variants]]
name = "grpo"
settings = { recipe.name = "grpo", train.group_size = 2 }
[quick]
seeds = [0]
worlds = ["lake"]
variants = ["grpo"]
settings.train.num_updates = 1
"""


def study_of(text: str, tmp_path: Path) -> StudyConfig:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return load_study(file)


def planned(text: str, tmp_path: Path, **options: Any) -> list[PlannedRun]:
    return plan_runs(study_of(text, tmp_path), tmp_path, tmp_path / "runs", **options)


# --- the plan ---------------------------------------------------------------------------------


def test_every_variant_meets_every_world_before_the_next_seed_begins(tmp_path: Path) -> None:
    names = [run.name for run in planned(SMALL, tmp_path)]
    assert names == [
        f"{world}-{variant}-seed{seed}"
        for seed in (0, 1)
        for world in ("lake", "big-lake")
        for variant in ("steppo", "grpo")
    ]


def test_variants_change_worlds_which_change_what_all_share(tmp_path: Path) -> None:
    runs = {run.name: run.config for run in planned(SMALL, tmp_path, device="cuda")}
    config = runs["big-lake-grpo-seed1"]
    assert (config.env.options["size"], config.env.options["hole_rate"]) == (5, 0.1)
    assert (config.recipe.name, config.train.group_size, config.train.tasks_per_update) == ("grpo", 2, 4)
    assert (config.recipe.kl_coef, config.policy.device, config.seed) == (0.0, "cuda", 1)
    assert runs["lake-steppo-seed0"].train.group_size == 1
    assert not config.monitor.console and not config.monitor.tensorboard
    assert Path(config.folder) / str(config.name) == tmp_path / "runs" / "big-lake-grpo-seed1"


def test_the_short_form_keeps_what_it_names_and_wins_over_variants(tmp_path: Path) -> None:
    runs = plan_runs(study_of(SMALL, tmp_path).shortened(), tmp_path, tmp_path)
    assert [run.name for run in runs] == ["lake-grpo-seed0"]
    assert runs[0].config.train.num_updates == 1 and runs[0].config.train.group_size == 2


def test_a_study_without_worlds_is_in_that_of_its_base(tmp_path: Path) -> None:
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
        ("seeds = [0, 1]", "seed = [0, 1]", "seed: unknown key; did you mean seeds?"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "seeds: 1 is there twice"),
        ('name = "grpo"\n', 'name = "grpo"\ngruop = "x"\n', "variants 2 gruop: unknown key; did you"),
        ('name = "grpo"\n', 'name = "a/b"\n', "variants 2 name: 'a/b' becomes a folder's name"),
        ('name = "grpo"\n', 'name = "steppo"\n', "variants: steppo is there twice"),
        ('["grpo"]', '["gpro"]', "quick.variants: unknown name 'gpro'; did you mean grpo?"),
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
    with pytest.raises(ConfigError, match=r"variant grpo on lake: recipe\.name: there is no 'gpro'"):
        run_study(tmp_path / "study.toml", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


tables = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
).filter(lambda table: isinstance(table, dict))


@given(tables, tables)
def test_merging_keeps_all_of_the_upper_table_and_what_it_does_not_touch(below: Any, above: Any) -> None:
    result = dict(flattened(merged(below, above)))
    upper = dict(flattened(above))
    assert upper.items() <= result.items()
    for path, value in flattened(below):
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
    for world in study.worlds:
        assert {run.config.train.max_env_steps for run in runs if run.world == world.name} == {
            world.env_steps
        }
    assert len(plan_runs(study.shortened(), ROOT / "studies", Path("runs"))) == 3


def test_the_example_of_the_page_is_a_study(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "studies.md").read_text()
    example = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)[0]
    runs = {run.name: run.config for run in planned(example, tmp_path)}
    assert len(runs) == 2 * 2 * 3
    assert runs["large-near-seed2"].recipe.credit == {"lam": 0.5}
    assert runs["large-near-seed2"].train.max_env_steps == 200_000
    assert runs["small-far-seed0"].train.max_env_steps == 100_000
    assert len(plan_runs(study_of(example, tmp_path).shortened(), tmp_path, tmp_path)) == 2


# --- the folder -------------------------------------------------------------------------------


def test_a_changed_study_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    _adopt(folder, planned(SMALL, tmp_path), False, False)
    _adopt(folder, planned(SMALL, tmp_path), False, False)
    changed = planned(SMALL.replace("group_size = 2", "group_size = 3"), tmp_path)
    with pytest.raises(ConfigError) as refusal:
        _adopt(folder, changed, False, False)
    assert "train.group_size 2 -> 3 (4 runs such as lake-grpo-seed0)" in str(refusal.value)
    assert "tasks_per_update" not in str(refusal.value)
    with pytest.raises(ConfigError, match=r"no longer there \(4 runs such as lake-steppo-seed1\)"):
        _adopt(folder, planned(SMALL.replace("[0, 1]", "[0]"), tmp_path), False, False)
    _adopt(folder, planned(SMALL.replace("[0, 1]", "[0, 1, 2]"), tmp_path), False, False)  # more is no change


def test_restart_throws_the_runs_away_and_nothing_that_is_not_a_study(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "runs" / "precious").mkdir(parents=True)
    with pytest.raises(ConfigError, match="has runs in it but no study"):
        _adopt(folder, planned(SMALL, tmp_path), False, True)
    (folder / "plan.json").write_text('{"runs": {"lake-old-seed0": {}}}')
    _adopt(folder, planned(SMALL, tmp_path), False, True)
    assert not (folder / "runs").exists()
    assert len(json.loads((folder / "plan.json").read_text())["runs"]) == 8


def test_a_folder_has_one_sitting_at_a_time(tmp_path: Path) -> None:
    with (
        _hold(tmp_path, None),
        pytest.raises(ConfigError, match=rf"process {os.getpid()}\) is at work"),
        _hold(tmp_path, None),
    ):
        pytest.fail("the second sitting got in")
    with _hold(tmp_path, None):
        pass


# --- the figures ------------------------------------------------------------------------------


def write_run(run: PlannedRun, heights: list[float], *, status: Any = "finished", step: int = 50) -> None:
    """A run folder as the loop leaves it: evaluations every `step` environment steps."""
    folder = Path(run.config.folder) / run.name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    monitor = JsonlMonitor()
    monitor.start(RunInfo(folder, run.name, "frozenlake", run.variant, run.seed, 10))
    for index, height in enumerate(heights):
        monitor.record(Entry("eval", index, 2.0 * index, step * index, {"success": height}))
    monitor.close()
    last = len(heights) - 1
    summary = Summary(
        heights[0], heights[-1], step * last, 2.0 * last, run.seed, run.variant, "frozenlake", status
    )
    summary.after = Score(heights[-1], heights[-1] - 0.1, heights[-1] + 0.1, 64)
    summary.more = {"num_updates": last, "warm_start_s": 1.0}
    summary.machine = {"processor": "abacus", "torch": "2"}
    write_summary(folder, summary)


THREE = """
name = "three"
title = "Three <of> them"
seeds = [0, 1, 2]
env_steps = 100
[settings]
train = { tasks_per_update = 4, group_size = 1 }
[[worlds]]
name = "lake"
[[variants]]
name = "base"
note = "as it is & was"
[[variants]]
name = "good"
[[variants]]
name = "better"
[[variants]]
name = "broken"
"""


def three(tmp_path: Path) -> Results:
    study = study_of(THREE, tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    heights = {
        "base": [[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3]],
        "good": [[0.1, 0.5, 0.7], [0.1, 0.4, 0.6], [0.1, 0.6, 0.8]],
        "better": [[0.1, 0.5, 0.8], [0.1, 0.3, 0.9], [0.1, 0.9, 0.7]],
    }
    for run in runs:
        if run.variant in heights:
            write_run(run, heights[run.variant][run.seed])
        elif run.seed == 0:
            write_run(run, [0.1, 0.95], status="interrupted")
        elif run.seed == 1:
            write_run(run, [0.1, 0.0], status="failed")
            (tmp_path / "runs" / run.name / "error.txt").write_text("DivergenceError: <nan>\n")
    return collect(study, runs, is_quick=False, sittings=[])


def test_rows_are_means_and_spreads_over_finished_seeds(tmp_path: Path) -> None:
    results = three(tmp_path)
    rows = {row.variant: row for row in results.rows["lake"]}
    assert [row.variant for row in results.rows["lake"]] == ["base", "better", "good", "broken"]
    good = rows["good"]
    assert good.after and good.before and good.area and good.best and good.updates_per_min
    assert good.after.mean == pytest.approx(0.7) and good.after.spread == pytest.approx(0.1)
    assert (good.after.low, good.after.high) == (0.6, 0.8)
    assert good.before.spread == 0.0 and good.best.mean == pytest.approx(0.7)
    # seed 0 over 100 steps: trapezes 0.1..0.5..0.7 -> (0.3 + 0.6) / 2; means of seeds 0.45, 0.375, 0.525
    assert good.area.mean == pytest.approx(0.45)
    assert good.updates_per_min.mean == pytest.approx(
        60 * 2 / 3.0
    )  # 2 updates in 4 s, 1 s of them warm start
    assert [rows[name].standing for name in ("base", "good", "better", "broken")] == ["", "close", "best", ""]
    assert rows["broken"].after is None and (rows["broken"].num_seeds, rows["broken"].num_planned) == (0, 3)
    assert rows["better"].best and rows["better"].best.high == 0.9  # seen before the end
    assert results.num_done == 9


def test_unfinished_runs_are_told_and_not_counted(tmp_path: Path) -> None:
    results = three(tmp_path)
    found = {run.name: (run.status, run.success_after) for run in results.runs if run.variant == "broken"}
    assert found == {
        "lake-broken-seed0": ("unfinished", None),
        "lake-broken-seed1": ("failed", None),
        "lake-broken-seed2": ("waiting", None),
    }


def test_outputs_hold_the_figures_and_need_nothing_else(tmp_path: Path) -> None:
    write_pages(tmp_path, three(tmp_path))
    table = (tmp_path / "table.md").read_text()
    assert "| better | 3 | 0.100 ± 0.000 | 0.800 ± 0.100 | best | 0.867 ± 0.058 |" in table
    assert "| good | 3 | 0.100 ± 0.000 | 0.700 ± 0.100 | ≈ best |" in table
    assert "| broken | 0 of 3 | – |" in table
    assert "over 3 seeds" in table and "9 of 12 runs" in table
    assert "* lake-broken-seed1 failed: DivergenceError: <nan>" in table
    saved = json.loads((tmp_path / "results.json").read_text())
    run = next(run for run in saved["runs"] if run["name"] == "lake-good-seed1")
    assert (run["success_after"], run["env_steps"], run["updates"]) == (0.6, 100, 2)
    assert run["after"] == {"low": 0.5, "high": 0.7, "num_tasks": 64}
    assert run["curve"] == [[0, 0.1], [50, 0.4], [100, 0.6]] and run["area"] == pytest.approx(0.375)
    assert saved["machines"] == [{"processor": "abacus", "torch": "2"}]
    page = (tmp_path / "study.html").read_text()
    assert "Three &lt;of&gt; them" in page and "DivergenceError: &lt;nan&gt;" in page and "<nan>" not in page
    assert set(re.findall(r"(?:https?:)?//[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "0.700 ± 0.100" in page and "<script" not in page


def test_a_plot_has_a_line_and_a_band_for_every_finished_variant(tmp_path: Path) -> None:
    write_pages(tmp_path, three(tmp_path))
    root = ElementTree.fromstring((tmp_path / "curves-lake.svg").read_text())
    lines = {line.get("data-name") for line in root.iter() if line.tag.endswith("polyline")} - {None}
    assert lines == {"base", "good", "better"}
    assert sum(part.tag.endswith("polygon") for part in root.iter()) == 3


def test_one_seed_has_no_spread_and_calls_nothing_close(tmp_path: Path) -> None:
    study = study_of(THREE.replace("[0, 1, 2]", "[0]"), tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run, height in zip(runs, (0.5, 0.51, 0.6, 0.6), strict=True):
        write_run(run, [0.1, height])
    results = collect(study, runs, is_quick=True, sittings=[])
    assert [row.standing for row in results.rows["lake"]] == ["", "best", "best", ""]
    write_pages(tmp_path, results)
    assert "One seed: there is no spread" in (tmp_path / "table.md").read_text()
    # 50 of the 100 steps that each was to use
    assert (tmp_path / "table.md").read_text().count("50 (below the budget)") == 4


def test_without_a_budget_the_area_is_over_the_steps_that_all_have_used(tmp_path: Path) -> None:
    study = study_of(THREE.replace("env_steps = 100", ""), tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run in runs:
        write_run(run, [0.0, 0.4, 0.8], step=100 if run.variant == "base" else 50)
    results = collect(study, runs, is_quick=False, sittings=[])
    assert results.horizons == {"lake": 100.0}
    areas = {run.variant: run.area for run in results.runs}
    assert areas["base"] == pytest.approx(0.2) and areas["good"] == pytest.approx(0.4)


curves = st.lists(
    st.tuples(st.integers(1, 1000), st.floats(0, 1)), min_size=1, max_size=8, unique_by=lambda point: point[0]
).map(lambda points: [(0, points[0][1]), *sorted(points)])


@given(curves, st.integers(1, 2000))
def test_an_area_lies_between_the_lowest_and_the_highest_point(curve: Any, horizon: int) -> None:
    heights = [height for _, height in curve]
    found = area(curve, horizon)
    assert found is not None and min(heights) - 1e-9 <= found <= max(heights) + 1e-9


def test_the_last_value_of_a_curve_holds() -> None:
    assert area([(0, 0.0), (10, 1.0)], 20) == pytest.approx(0.75)
    assert area([(0, 0.5), (30, 1.0)], 15) == pytest.approx(0.625)
    assert area([], 10) is None


def test_a_mean_curve_reaches_as_far_as_all_of_its_curves() -> None:
    found = mean_curve([[(0, 0.0), (10, 1.0), (20, 1.0)], [(0, 0.5), (8, 0.5)]])
    assert found["x"] == [0, 8]
    assert found["mean"] == pytest.approx([0.25, 0.65])
    assert (found["low"], found["high"]) == ([0.0, 0.5], [0.5, 0.8])


def test_intervals_overlap_when_they_touch() -> None:
    def figure(mean: float, spread: float | None) -> Figure:
        return Figure(mean, spread, mean, mean)

    assert figure(0.75, 0.25).overlaps(figure(0.25, 0.25))
    assert not figure(0.75, 0.125).overlaps(figure(0.25, 0.25))
    assert not figure(0.75, None).overlaps(figure(0.75, 0.1))


def test_progress_is_the_share_of_updates_or_budget_whichever_is_further(tmp_path: Path) -> None:
    run = planned(THREE, tmp_path)[0]
    folder = tmp_path / "runs" / run.name
    assert how_far(folder, run.config) == {"phase": "starting", "share": 0.0, "success": ""}
    write_run(run, [0.25, 0.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"torn')
    assert how_far(folder, run.config) == {"phase": "update 1", "share": 0.5, "success": "0.00"}


# --- processes --------------------------------------------------------------------------------

TINY = """
name = "tiny"
seeds = [0]
[settings]
policy.model = "tiny-0.3m"
env.options = { size = 3, max_turns = 2 }
agent.guide = false
sampling.max_tokens = 8
warm_start = { num_demos = 4, batch_size = 4 }
eval = { every = 0, num_tasks = 2 }
checkpoint.every = 2
train = { num_updates = 2, tasks_per_update = 2, group_size = 2, num_tasks = 16 }
[[variants]]
name = "steppo"
[[variants]]
name = "grpo"
settings = { recipe.name = "grpo" }
"""


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_the_others_come_to_their_end(tmp_path: Path) -> None:
    file, folder = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(TINY.replace('recipe.name = "grpo"', 'policy.model = "no/where"'))
    output = io.StringIO()
    options: dict[str, Any] = {"folder": folder, "workers": 2, "console": Console(file=output, width=300)}
    early = run_study(file, limit_s=0.5, **options)
    assert (early.ending, early.num_done, early.failed) == ("limit", 0, [])
    assert re.search(r"the time is over: [0-2] runs save and stop", output.getvalue())
    sitting = run_study(file, **options)
    assert (sitting.ending, sitting.num_done, sitting.num_runs) == ("failed", 1, 2)
    assert sitting.failed == ["frozenlake-grpo-seed0"]
    assert "frozenlake-grpo-seed0  failed: ModelError: model 'no/where'" in output.getvalue()
    saved = json.loads((folder / "results.json").read_text())
    runs = {run["variant"]: run for run in saved["runs"]}
    assert runs["grpo"]["status"] == "failed" and runs["grpo"]["error"].startswith("ModelError")
    assert runs["steppo"]["status"] == "finished" and runs["steppo"]["updates"] == 2
    assert saved["machines"][0]["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    run = folder / "runs" / "frozenlake-steppo-seed0"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["best"]
    # the next sitting leaves what is finished alone; nothing else was asked for
    written = (run / "summary.json").stat().st_mtime_ns
    assert run_study(file, only="steppo", **options).ending == "complete"
    assert (run / "summary.json").stat().st_mtime_ns == written
    endings = [item["ending"] for item in json.loads((folder / "results.json").read_text())["sittings"]]
    assert endings == ["limit", "failed", "complete"]


def wait_until(is_so: Any, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 90
    while not is_so():
        assert process.poll() is None and time.monotonic() < until, "the study ended or hangs"
        time.sleep(0.05)


def children(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_study_survives_kill_9_of_a_worker_kill_9_of_itself_and_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY.replace("num_updates = 2", "num_updates = 20"))
    command = [sys.executable, "-m", "stepwell", "study", "tiny.toml", "--folder", "out", "--workers", "2"]
    folder = tmp_path / "out" / "runs"
    killed, other = folder / "frozenlake-steppo-seed0", folder / "frozenlake-grpo-seed0"

    def sit() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    first = sit()
    try:
        wait_until(lambda: all(any((run / "checkpoints").glob("update-*")) for run in (killed, other)), first)
        os.kill(children(first)[0], signal.SIGKILL)
        wait_until(lambda: status_of(killed) == "failed", first)
        assert "was killed by SIGKILL" in (killed / "error.txt").read_text()
    finally:
        first.kill()
        first.communicate()
    # the worker that is left notices, saves and stops; the next sitting waits for it
    second = sit()
    wait_until(lambda: not (killed / "error.txt").exists(), second)
    entries = read_entries(other / "metrics.jsonl")
    assert any(entry.text.startswith("interrupted") for entry in entries)
    assert f"update-{max(entry.update for entry in entries):06d}" in os.listdir(other / "checkpoints")
    second.send_signal(signal.SIGINT)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 130, output
    assert output.splitlines()[-1].endswith("the same command goes on where it stopped.")
    third = sit()
    output, _ = third.communicate(timeout=120)
    assert third.returncode == 0, output
    assert output.splitlines()[-1].startswith("2 of 2 runs done  table out/table.md")
    for run in (killed, other):
        updates = [entry.update for entry in read_entries(run / "metrics.jsonl") if entry.kind == "update"]
        assert updates == list(range(1, 21)) and status_of(run) == "finished"
    endings = [item["ending"] for item in json.loads((tmp_path / "out/results.json").read_text())["sittings"]]
    assert endings == ["killed", "interrupted", "complete"]
