"""Figures of SmolLM2's runs: read from run folders, drawn, and told in the documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pretrained_runs import draw_curves, read_run
from tests.studies.study_files import THREE, planned, write_run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results" / "pretrained"


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    content = json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))
    return {run["run"]: run for run in content["runs"]}  # of one name the last


def test_a_run_folder_is_read(tmp_path: Path) -> None:
    run = planned(THREE, tmp_path)[0]
    write_run(run, [0.25, 0.5, 0.75])
    found = read_run(tmp_path / "runs" / run.name, "a test")
    assert found["run"] == run.name and found["from"] == "a test"
    assert [(point["update"], point["success"]) for point in found["held_out"]] == [
        (0, 0.25),
        (1, 0.5),
        (2, 0.75),
    ]


def test_the_drawing_has_every_run_in_the_household(runs: dict[str, Any]) -> None:
    household = {name for name in runs if name.startswith("household")}
    assert draw_curves(list(runs.values())).count("data-name=") == len(household)
    committed = (FOLDER / "curves-household.svg").read_text(encoding="utf-8")
    assert committed.count("data-name=") == len(household)  # else: draw it again


def ends(runs: dict[str, Any], arm: str, seeds: tuple[int, ...], update: int | None = None) -> list[str]:
    """Held-out success after training (or at an update), as the pages print it."""
    found = []
    for seed in seeds:
        points = runs[f"{arm}-seed{seed}"]["held_out"]
        chosen = points[-1] if update is None else next(p for p in points if p["update"] == update)
        found.append(f"{chosen['success']:.2f}")
    return found


def test_the_pages_have_the_figures_of_all_seeds(runs: dict[str, Any]) -> None:
    study, recipes, learnt = (
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("study_steppo.md", "recipes.md", "what_we_learnt.md")
    )
    seeds = (0, 1, 2)
    preset = "household-smollm2-48"
    changes = list(zip(ends(runs, preset, seeds, 0), ends(runs, preset, seeds), strict=True))
    assert ", ".join(f"{before} → {after}" for before, after in changes) in recipes
    assert ", ".join(f"{before} → {after}" for before, after in changes) in study
    assert all(f"{before} to {after}" in learnt for before, after in changes)
    for arm, title, updates in (
        ("household-smollm2", "PPO", (0, 8, 16, 24, 32)),
        ("household-steppo-token-ratio", "StepPO with a ratio by token", (0, 8, 16, 24, 32)),
        ("household-steppo", "StepPO", (0, 8, 16, 24)),
        ("household-steppo-fast-critic", "StepPO, critic three times as fast", (0, 8, 16, 24)),
    ):
        cells = " | ".join(", ".join(ends(runs, arm, seeds, update)) for update in updates)
        assert any(line.startswith(f"| {title}") and f"| {cells} |" in line for line in study.splitlines()), (
            arm,
            cells,
        )
