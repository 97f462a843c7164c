"""Runs that a time limit cut are compared by their training episodes, over what all of them reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.unfinished_runs import compare_variants, read_run

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.studies.paired_differences import compare_pairs

ROOT = Path(__file__).parents[2]


def write_updates(folder: Path, heights: list[float]) -> Path:
    folder.mkdir(parents=True)
    monitor = JsonlMonitor()
    monitor.start(RunInfo(folder, folder.name, "household", "steppo", 0, len(heights)))
    monitor.record(LogEntry("eval", 0, 0.0, 0, {"success": 0.25}))
    for index, height in enumerate(heights, 1):
        monitor.record(LogEntry("update", index, 1.0 * index, 0, {"success": height, "clip_share": 0.1}))
    monitor.close()
    return folder


def test_means_are_over_ten_updates_and_the_rest(tmp_path: Path) -> None:
    found = read_run(write_updates(tmp_path / "short-steppo-seed0", [0.2] * 10 + [0.5, 0.7]))
    assert (found["updates"], found["held_out"]) == (12, {"0": 0.25})
    assert found["success"] == [0.2, 0.6] and found["clip_share"] == [0.1, 0.1]
    assert "grounding_share" not in found  # this run had none


def test_pairs_are_compared_over_the_last_updates_that_all_reached(tmp_path: Path) -> None:
    folders = [
        write_updates(tmp_path / "short-steppo-seed0", [0.0] * 5 + [0.4] * 10 + [0.9] * 20),
        write_updates(tmp_path / "short-steppo-seed1", [0.0] * 5 + [0.5] * 10),
        write_updates(tmp_path / "short-steppo-seed2", [0.9] * 30),  # no partner
        write_updates(tmp_path / "short-steppo-clip-seed0", [0.5] * 15),
        write_updates(tmp_path / "short-steppo-clip-seed1", [0.7] * 18),
    ]
    (found,) = compare_variants(folders, "steppo-clip", "steppo")
    assert found["env"] == "short" and (found["seeds"], found["updates"]) == (["0", "1"], [6, 15])
    assert found["difference"] == pytest.approx(0.15)
    assert found["interval"][0] < 0 < found["interval"][1]  # two seeds


def test_each_environment_is_compared_by_itself(tmp_path: Path) -> None:
    heights = {"short-a": 0.2, "short-b": 0.1, "reach-flow-a": 0.9, "reach-flow-b": 0.5, "long-a": 0.4}
    folders = [write_updates(tmp_path / f"{name}-seed0", [x] * 10) for name, x in heights.items()]
    found = compare_variants(folders, "a", "b")
    assert [(each["env"], each["seeds"], each["difference"]) for each in found] == [
        ("reach-flow", ["0"], pytest.approx(0.4)),
        ("short", ["0"], pytest.approx(0.1)),  # long has no b
    ]
    with pytest.raises(SystemExit, match="no seed of an environment has both"):
        compare_variants([folders[1], folders[4]], "a", "b")  # the same seed, of other tasks


def test_a_run_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    folders = [write_updates(tmp_path / part / "short-a-seed0", [0.2] * 10) for part in ("first", "second")]
    with pytest.raises(SystemExit, match="short-a-seed0 is there twice"):
        compare_variants(folders, "a", "a")


def test_the_page_of_vagen_has_the_figures_of_its_runs() -> None:
    folder = ROOT / "benchmarks/results/vagen-environments"
    results = {run["name"]: run for run in json.loads((folder / "results.json").read_text())["runs"]}
    training = {run["run"]: run for run in json.loads((folder / "training.json").read_text())["runs"]}
    page = (ROOT / "docs/study_vagen.md").read_text(encoding="utf-8")
    finished = [run for run in results.values() if run["updates"] == 60]
    assert len(finished) == 26
    for env, variant in {(run["env"], run["variant"]) for run in finished}:
        names = [run["name"] for run in finished if (run["env"], run["variant"]) == (env, variant)]
        changes = [(results[n]["success_before"], results[n]["success_after"]) for n in names]
        success = ", ".join(f"{before:.2f} → {after:.2f}" for before, after in changes)
        ends = [
            ", ".join(f"{results[n]['gate'][gate]:.2f}" for n in names)
            + " → "
            + ", ".join(f"{training[n][metric][-1]:.2f}" for n in names)
            for gate, metric in (("grounding", "grounding_share"), ("explained", "explained_variance"))
        ]
        row = f"{variant} (rewarded) | {success} | {ends[0]} | {ends[1]} |".replace("-0.", "−0.")
        assert row in page or row.replace(" (rewarded)", "") in page, row


def test_the_page_of_vagen_has_the_runs_of_the_other_three_environments() -> None:
    folder = ROOT / "benchmarks/results/vagen-environments"
    page = (ROOT / "docs/study_vagen.md").read_text(encoding="utf-8")
    runs = json.loads((folder / "results.json").read_text())["runs"]
    finished = [run for run in runs if run["updates"] == 30 and run["success_after"] is not None]
    assert len(finished) == 17
    section = page.split("### Navigation, PrimitiveSkill, SVG\n")[1].partition("\n**")[0]
    rows = {line.split(" | ")[0]: line for line in section.splitlines()}
    for run in finished:
        assert f"{run['success_before']:.2f} → {run['success_after']:.2f}" in rows[f"| {run['variant']}"]
    pairs = json.loads((folder / "training-navigation.json").read_text())["pairs"]
    for pair in pairs:
        low, high = pair["interval"]
        text = f"{pair['difference']:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "−")
        assert text in page, text
    blind = json.loads((folder / "navigation-baselines.json").read_text())["study"]["blind_plan_success"]
    assert f"; {blind:.2f} |" in rows["| random play; the best blind plan"]


def test_the_page_of_vagen_has_the_runs_of_its_second_study() -> None:
    folder = ROOT / "benchmarks/results/vagen-three-environments"
    runs = {run["name"]: run for run in json.loads((folder / "results.json").read_text())["runs"]}
    training = json.loads((folder / "training.json").read_text())
    page = (ROOT / "docs/study_vagen.md").read_text(encoding="utf-8")
    section = page.split("### SVG again, from an expert that errs\n")[1].partition("\n## ")[0]
    rows = {line[2:].split(" ")[0]: line for line in section.splitlines() if line.startswith("| ")}
    assert len(training["runs"]) == 16 and sum(len(run["held_out"]) == 2 for run in training["runs"]) == 13
    for run in training["runs"]:
        variant = run["run"].removeprefix("svg-").rpartition("-seed")[0]
        row = rows[variant]
        shown = [run["success"], run["grounding_share"]]
        if len(run["held_out"]) == 2:
            shown.append([run["held_out"]["0"], runs[run["run"]]["success_after"]])
        assert all(f"{values[0]:.2f} → {values[-1]:.2f}" in row for values in shown), run["run"]
    for pair in training["pairs"]:
        if pair["interval"] is not None:
            low, high = pair["interval"]
            text = f"{pair['difference']:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "−")
            assert text in section, text
    for variant in ("vagen-full", "vagen-full-hot"):
        whole = [
            run for run in runs.values() if run["variant"] == variant and run["success_after"] is not None
        ]
        changed = compare_pairs(
            [[run["success_after"]] for run in whole], [[run["success_before"]] for run in whole]
        )
        assert f"{changed.low:+.3f} to {changed.high:+.3f}".replace("-", "−") in section
    baselines = json.loads(
        (ROOT / "benchmarks/results/vagen-environments/navigation-baselines.json").read_text()
    )
    rooms = baselines["second study"]
    assert rooms["oracle_success"] == 1.0 and rooms["blind_plan_success"] < 0.2
    assert f"solves {rooms['blind_plan_success']:.2f} of the held-out rooms" in section


def test_the_page_has_what_the_committed_file_says() -> None:
    file = ROOT / "benchmarks/results/step-credit-short/training.json"
    pairs = {pair["pair"]: pair for pair in json.loads(file.read_text())["pairs"]}
    page = (ROOT / "docs/study_steppo.md").read_text(encoding="utf-8")
    for name in ("token-ratio-clip against steppo-clip", "steppo-clip against steppo-8x2"):
        pair = pairs[name]
        low, high = pair["interval"]
        text = f"{pair['difference']:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "−")
        assert text in page, text
