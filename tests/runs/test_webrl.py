"""WebRL's whole loop on the smallest lake: phases from failures, screened, with replay and a reference."""

from __future__ import annotations

import multiprocessing
import signal
from contextlib import closing
from glob import glob
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.runs.small import notes, small_config, timeless
from tests.runs.test_resume import cut_back, go_on, newest, same, wait_for

from stepwell.core import TaskRelation
from stepwell.curriculum import PhaseFiles, ScoreFiles
from stepwell.monitors.phases import build_trees, read_phases
from stepwell.monitors.report import read_run, render
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train

WEBRL = (
    "recipe.name=webrl",
    "curriculum.num_phases=3",
    "curriculum.min_value=0.0",
    "curriculum.max_value=1.0",
    "replay.min_perplexity=1.0",
    "replay.max_perplexity=50",
    "rewards.scale=1",
    "train.num_updates=6",
    "train.num_tasks=40",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "eval.num_tasks=2",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*WEBRL, folder=tmp_path_factory.mktemp("whole")))


def test_phases_are_made_from_failures_with_lineage_and_what_the_screen_said(whole: Path) -> None:
    files = PhaseFiles(whole / "tasks")
    assert [files.has_phase(phase) for phase in range(5)] == [False, True, True, True, False]
    for phase in (2, 3):
        made = [each for each in files.read_phase(phase) if each.parents]
        earlier = {each.task.id for each in files.read_phase(phase - 1)}
        assert made and {each.generator for each in made} == {"evolve"}
        assert all(set(each.parents) <= earlier for each in made)
        assert all(each.relation in TaskRelation.__members__.values() for each in made)
        assert all(0 <= (each.value or 0) <= 1 and each.num_turns for each in made)
        assert not {each.task.id for each in made} & {
            each.task.id for before in range(1, phase) for each in files.read_phase(before)
        }
        with closing(open_pool(whole / "pool")) as pool:
            failed = {entry.task_id for entry in pool.find(Filter(is_success=False))}
        assert {parent for each in made for parent in each.parents} <= failed
    assert any("made from failures" in note for note in notes(whole))


def test_every_phase_is_told_and_shown_in_the_report(whole: Path) -> None:
    phases = read_phases(whole)
    assert [summary["updates"] for summary in phases] == [[1, 2], [3, 4], [5, 6]]
    assert all(summary["num_episodes"] == 16 for summary in phases)
    assert sum(row["episodes"] for row in phases[1]["families"].values()) == 16
    scored = ScoreFiles(whole / "replay").read_scores(5)
    assert phases[0]["buffer"] == 0 and phases[2]["buffer"] == len(scored) > 0
    assert sum(phases[2]["perplexities"]["counts"]) == sum(len(each.perplexities) for each in scored)
    assert sum("episodes solved; " in note for note in notes(whole)) == 3
    page = render(read_run(whole))
    assert "Family tree of tasks" in page and "tasks made from failures" in page
    trees = build_trees(phases)
    assert trees and all(child.phase > tree.phase for tree in trees for child in tree.children)


def test_each_phase_is_held_by_the_policy_before_it(whole: Path) -> None:
    for first in (3, 5):
        reference = load_file(whole / f"reference-{first:06d}.safetensors")
        saved = load_file(whole / f"checkpoints/update-{first - 1:06d}/model.safetensors")
        shared = reference.keys() & saved.keys()
        assert shared and all(torch.equal(reference[name], saved[name]) for name in shared)


@pytest.mark.slow
@pytest.mark.parametrize("update", [2, 3])
def test_a_resumed_run_makes_the_same_phases_and_weights(whole: Path, tmp_path: Path, update: int) -> None:
    folder = cut_back(whole, tmp_path / "run", update)
    if update == 2:  # killed before the second phase was stored
        for path in (*(folder / "tasks").glob("*-0002.jsonl"), *(folder / "tasks").glob("*-0003.jsonl")):
            path.unlink()
    train(resume=folder)
    same(whole, folder, update=6)
    for path in sorted((whole / "tasks").iterdir()):
        assert path.read_text() == (folder / "tasks" / path.name).read_text()


def test_a_band_that_no_task_meets_leaves_tasks_of_the_environment(tmp_path: Path) -> None:
    settings = (*WEBRL, "train.num_updates=2", "curriculum.num_phases=2", "curriculum.min_value=2")
    folder = train(small_config(*settings, "curriculum.max_value=3", "eval.num_tasks=0", folder=tmp_path))
    files = PhaseFiles(folder / "tasks")
    assert all(not each.parents for each in files.read_phase(2))
    assert {each.reason for each in files.read_dropped(2)} <= {
        "too hard",
        "duplicate",
        "of the held-out split",
    }
    assert any(each.reason == "too hard" and each.made.value is not None for each in files.read_dropped(2))


def test_without_curriculum_or_replay_the_recipe_keeps_one_list(tmp_path: Path) -> None:
    settings = ("recipe.name=webrl", "curriculum.enabled=false", "replay.enabled=false", "eval.num_tasks=0")
    folder = train(small_config(*settings, folder=tmp_path))
    assert not (folder / "tasks").exists() and not (folder / "replay").exists()
    updates = [entry.values for entry in timeless(folder) if entry.kind == "update"]
    assert not any("phase" in values or "replay/steps" in values for values in updates)


@pytest.mark.slow
def test_killed_through_phases_and_replay_the_rest_is_the_same(whole: Path, tmp_path: Path) -> None:
    """Twenty kills while tasks are evolved, scores and references stored, episodes played and learnt from."""
    folder, config = tmp_path / "run", small_config(*WEBRL, folder=tmp_path)
    patterns = [
        *(
            "metrics.jsonl",
            "tasks/phase-0001.jsonl",
            "replay/update-000001.jsonl",
            "checkpoints/update-000001",
        ),
        *("checkpoints/.update-000002*", "reference-000003.safetensors", "tasks/dropped-0002.jsonl"),
        *("tasks/phase-0002.jsonl", "replay/update-000003.jsonl", "checkpoints/update-000003"),
        *("checkpoints/.update-000004*", "reference-000005.safetensors", "tasks/.dropped-0003*"),
        *("tasks/dropped-0003.jsonl", "tasks/.phase-0003*", "tasks/phase-0003.jsonl"),
        *("replay/.update-000005*", "replay/update-000005.jsonl", "checkpoints/update-000005"),
        "checkpoints/.update-000006*",
    ]
    num_killed = 0
    for number, pattern in enumerate(patterns):
        late = f"update-{min(1 + number // 4, 5):06d}"  # a fast machine may slip past the moment
        child = multiprocessing.get_context("fork").Process(target=go_on, args=(config, folder))
        child.start()
        wait_for(
            lambda c=child, p=pattern, n=late: (
                glob(p, root_dir=folder) or newest(folder) >= n or not c.is_alive()
            )
        )
        child.kill()
        child.join()
        num_killed += child.exitcode == -signal.SIGKILL
    assert num_killed >= 12 and newest(folder) >= "update-000004"
    train(resume=folder)
    same(whole, folder, update=6)
    for path in sorted((whole / "tasks").glob("phase-*")):
        assert path.read_text() == (folder / "tasks" / path.name).read_text()
    with closing(open_pool(folder / "pool")) as pool:
        entries = list(pool.find(Filter(channel="train")))
        assert len(entries) == len({entry.id for entry in entries}) == 48
        assert {entry.state for entry in entries} == {"consumed"}
