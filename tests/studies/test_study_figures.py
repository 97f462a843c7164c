"""What the figures of a study say: means, spreads, areas, curves, pages."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.studies.study_files import THREE, planned, study_of, write_run

from stepwell.config.study import plan_runs
from stepwell.studies.differences import describe_differences, describe_power
from stepwell.studies.pages import write_pages
from stepwell.studies.paired_differences import SEED_SPREAD, compute_detectable_difference
from stepwell.studies.progress import read_progress
from stepwell.studies.results import Results, RunResult, area, collect_results, mean_curve
from stepwell.studies.rows import Row


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
    return collect_results(study, runs, is_quick=False, sessions=[])


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
    standings = {name: rows[name].standing for name in rows}
    assert standings == {"base": "behind", "good": "close", "better": "best", "broken": ""}
    assert rows["broken"].after is None and (rows["broken"].num_seeds, rows["broken"].num_planned) == (0, 3)
    assert rows["better"].best and rows["better"].best.high == 0.9  # seen before the end
    assert results.num_done == 9


def test_an_environment_in_which_nothing_has_finished_has_no_table(tmp_path: Path) -> None:
    text = THREE.replace('name = "lake"', 'name = "lake"\n[[environments]]\nname = "empty"')
    study = study_of(text, tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    write_run(runs[0], [0.1, 0.5])
    write_pages(tmp_path, collect_results(study, runs, is_quick=False, sessions=[]))
    table = (tmp_path / "table.md").read_text()
    assert "## lake" in table and "## empty" not in table and not (tmp_path / "curves-empty.svg").exists()
    assert "* not started yet (23): lake-good-seed0, " in table and "empty-broken-seed2" in table


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
    assert "| good | 3 | 0.100 ± 0.000 | 0.700 ± 0.100 | not told apart |" in table
    assert "| broken | 0 of 3 | – |" in table
    # seeds 0.7, 0.6, 0.8 against 0.3 each: error 0.1 / √3, times 4.303 of Student's t with two degrees
    assert "* good against base: +0.400 (+0.152 to +0.648)" in table
    assert "* broken against" not in table
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


def test_pairs_of_other_starts_are_told(tmp_path: Path) -> None:
    study = study_of(THREE, tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run in runs:  # one warm start for both, but in seed 1
        write_run(run, [0.2 if (run.variant, run.seed) == ("good", 1) else 0.1, 0.5 + run.seed / 10])
    results = collect_results(study, runs, is_quick=False, sessions=[])
    lines = {line.split()[1]: line for line in describe_differences(results)}
    assert lines["good"].endswith("; other starts at seed 1") and "other starts" not in lines["better"]


def test_a_plot_has_a_line_and_a_band_for_every_finished_variant(tmp_path: Path) -> None:
    write_pages(tmp_path, three(tmp_path))
    root = ElementTree.fromstring((tmp_path / "curves-lake.svg").read_text())
    lines = {line.get("data-name") for line in root.iter() if line.tag.endswith("polyline")} - {None}
    assert lines == {"base", "good", "better"}
    assert sum(part.tag.endswith("polygon") for part in root.iter()) == 3


def test_one_seed_has_no_spread_and_tells_nothing_apart(tmp_path: Path) -> None:
    study = study_of(THREE.replace("[0, 1, 2]", "[0]"), tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run, height in zip(runs, (0.5, 0.51, 0.6, 0.6), strict=True):
        write_run(run, [0.1, height])
    results = collect_results(study, runs, is_quick=True, sessions=[])
    assert [row.standing for row in results.rows["lake"]] == ["unknown", "best", "best", "unknown"]
    write_pages(tmp_path, results)
    assert "One seed: there is no spread" in (tmp_path / "table.md").read_text()
    # 50 of the 100 steps that each was to use
    assert (tmp_path / "table.md").read_text().count("50 (below the budget)") == 4


def test_without_a_budget_the_area_is_over_the_steps_that_all_have_used(tmp_path: Path) -> None:
    study = study_of(THREE.replace("env_steps = 100", ""), tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run in runs:
        write_run(run, [0.0, 0.4, 0.8], step=100 if run.variant == "base" else 50)
    results = collect_results(study, runs, is_quick=False, sessions=[])
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


def make_results(tmp_path: Path, by_task: dict[str, dict[int, list[float]]]) -> Results:
    """The study of `THREE` with these outcomes by held-out task; all other runs are missing."""
    study = study_of(THREE, tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run in runs:
        tasks = by_task.get(run.variant, {}).get(run.seed)
        if tasks is not None:
            write_run(run, [0.1, sum(tasks) / len(tasks)])
            told = {"tokens": 1, "turns": 1, "calls": {}, "score": 0.0, "golden": None}
            lines = [
                json.dumps(told | {"task": f"t{n}", "success": bool(win)}) for n, win in enumerate(tasks)
            ]
            (tmp_path / "runs" / run.name / "eval_episodes.jsonl").write_text("\n".join(lines) + "\n")
    return collect_results(study, runs, is_quick=False, sessions=[])


def rows_of(results: Results) -> dict[str, Row]:
    return {row.variant: row for row in results.rows["lake"]}


def test_a_variant_whose_paired_difference_is_told_apart_is_not_called_close_to_the_best(
    tmp_path: Path,
) -> None:
    """Seeds differ far more than methods do: deviations of means overlap, paired differences do not."""
    base = {seed: [0] * (200 - wins) + [1] * wins for seed, wins in enumerate((50, 100, 150))}
    good = {seed: [0] * (tasks.count(0) - 24) + [1] * (tasks.count(1) + 24) for seed, tasks in base.items()}
    better = {seed: [1, *tasks[1:]] for seed, tasks in good.items()}
    rows = rows_of(make_results(tmp_path, {"base": base, "good": good, "better": better}))
    assert {name: rows[name].standing for name in ("base", "good", "better")} == {
        "base": "behind",
        "good": "close",
        "better": "best",
    }
    after, best = rows["base"].after, rows["better"].after
    assert after and best and after.spread and best.spread
    assert best.mean - after.mean < after.spread + best.spread  # deviations overlap
    assert rows["base"].to_best and rows["base"].to_best.high is not None and rows["base"].to_best.high < 0


def test_rows_with_different_seeds_are_compared_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    """Seed 2 is an easy one and only `base` has finished it: over all its seeds it looks better."""
    base = {0: [0] * 30 + [1] * 10, 1: [0] * 28 + [1] * 12, 2: [1] * 40}
    good = {0: [0] * 21 + [1] * 19, 1: [0] * 19 + [1] * 21}
    results = make_results(tmp_path, {"base": base, "good": good})
    rows = rows_of(results)
    assert rows["base"].after and rows["good"].after and rows["base"].shared and rows["good"].shared
    assert rows["base"].after.mean > rows["good"].after.mean
    assert (rows["base"].shared.mean, rows["good"].shared.mean) == pytest.approx((0.275, 0.5))
    assert (rows["base"].standing, rows["good"].standing) == ("close", "best")  # two seeds: a wide interval
    write_pages(tmp_path, results)
    table = (tmp_path / "table.md").read_text()
    assert "| variant | seeds | before | after | after, seeds 0, 1 |  | best seen |" in table
    assert "| base (baseline) | 3 | 0.100 ± 0.000 | 0.517 ± 0.419 | 0.275 ± 0.035 | not told apart |" in table
    assert "| good | 2 of 3 | 0.100 ± 0.000 | 0.500 ± 0.035 | 0.500 ± 0.035 | best |" in table
    assert "* good against base: +0.225 (" in table and "2 seeds" in table
    assert "Plots and the further tables are over the seeds that all have: 0, 1." in table
    root = ElementTree.fromstring((tmp_path / "curves-lake.svg").read_text())
    assert {line.get("data-name") for line in root.iter() if line.tag.endswith("polyline")} >= {
        "base",
        "good",
    }
    page = (tmp_path / "study.html").read_text()
    assert "0.275 ± 0.035" in page


def test_with_one_shared_seed_nothing_is_told_apart(tmp_path: Path) -> None:
    rows = rows_of(make_results(tmp_path, {"base": {0: [0] * 40, 1: [1] * 40}, "good": {0: [1] * 40}}))
    assert (rows["base"].standing, rows["good"].standing) == ("unknown", "best")


def test_runs_that_learn_without_playing_have_no_area_and_leave_the_horizon_alone(tmp_path: Path) -> None:
    study = study_of(THREE.replace("env_steps = 100", ""), tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run in runs:
        write_run(run, [0.0, 0.4, 0.8], step=0 if run.variant == "good" else 50)
    results = collect_results(study, runs, is_quick=False, sessions=[])
    assert results.horizons == {"lake": 100.0}
    rows = rows_of(results)
    assert rows["good"].area is None and rows["base"].area and rows["base"].area.mean == pytest.approx(0.4)
    write_pages(tmp_path, results)
    table = (tmp_path / "table.md").read_text()
    line = next(line for line in table.splitlines() if line.startswith("| good |"))
    assert line.endswith("| none |") and "over the first 100 environment steps" in table


def test_a_study_in_which_nobody_plays_has_no_area(tmp_path: Path) -> None:
    study = study_of(THREE.replace("env_steps = 100", ""), tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    for run in runs:
        write_run(run, [0.0, 0.8], step=0)
    results = collect_results(study, runs, is_quick=False, sessions=[])
    write_pages(tmp_path, results)
    assert "Area:" not in (tmp_path / "table.md").read_text()


def test_a_study_says_before_it_runs_what_it_can_detect(tmp_path: Path) -> None:
    runs = planned(THREE, tmp_path)
    size = runs[0].config.eval.num_tasks, runs[0].config.eval.samples_per_task
    (guessed,) = describe_power(runs)
    smallest = compute_detectable_difference(3, *size)
    assert smallest is not None and f"from {smallest:.2f} on" in guessed
    assert guessed.startswith(f"lake: 3 seeds × {size[0]} held-out tasks × {size[1]} attempt")
    assert f"apart by {SEED_SPREAD:.2f}, as a careful guess" in guessed

    def earlier(wobble: float) -> list[RunResult]:
        """Seeds differ by 0.2 for all variants, and each variant by `wobble` in a seed of its own."""
        names = ["base", "good", "better"]
        heights = {(n, s): 0.3 + 0.2 * s + (wobble if names[s] == n else 0) for n in names for s in range(3)}
        return [
            RunResult(f"{n}{s}", "lake", n, s, "finished", updates=1, success_after=height)
            for (n, s), height in heights.items()
        ]

    (measured,) = describe_power(runs, earlier(0.3))
    # differences of two variants over seeds are 0.3, -0.3, 0: a deviation of 0.3, so 0.3 / √2 for each
    spread = math.sqrt(0.3**2 / 2 - 0.25 / (size[0] * size[1]))
    assert f"apart by {spread:.2f}, as the finished runs show" in measured
    (steady,) = describe_power(runs, earlier(0.0))
    assert "apart by 0.00" in steady  # what all variants of a seed share does not count
    (alone,) = describe_power([run for run in runs if run.seed == 0])
    assert alone.endswith("no difference between methods can be told from chance")
    one_variant = [run for run in earlier(0.3) if run.variant == "base"]
    assert describe_power(runs, one_variant) == [guessed]


def test_progress_is_the_share_of_updates_or_budget_whichever_is_further(tmp_path: Path) -> None:
    run = planned(THREE, tmp_path)[0]
    folder = tmp_path / "runs" / run.name
    assert read_progress(folder, run.config) == {"phase": "starting", "share": 0.0, "success": ""}
    write_run(run, [0.25, 0.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"torn')
    assert read_progress(folder, run.config) == {"phase": "update 1", "share": 0.5, "success": "0.00"}
