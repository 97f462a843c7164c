"""A run whose tasks change by phase: made from its results, stored, and the same after a resume."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.runs.small import notes, played, small_config, timeless
from tests.runs.test_resume import cut_back, same

from stepwell.core import ConfigError, Status
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train

PHASED = (
    "recipe.name=grpo",
    "train.num_updates=4",
    "train.tasks_per_update=2",
    "train.num_tasks=40",
    "curriculum.updates_per_phase=2",
    "curriculum.generator=tests.runs.phase_tasks:retry_failures",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "eval.num_tasks=2",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*PHASED, folder=tmp_path_factory.mktemp("whole")))


def stored_tasks(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / "tasks").glob("phase-*.jsonl"))]


def test_the_second_phase_is_made_from_what_the_first_left_unsolved(whole: Path) -> None:
    first = [t for update in (1, 2) for t in played(whole, update)]
    solved = {t.task.id for t in first if t.status is Status.SUCCESS}
    failed = {t.task.id for t in first} - solved
    lines = [json.loads(line) for line in stored_tasks(whole)[1].splitlines()]
    assert {line["parents"][0] for line in lines if line["parents"]} == failed
    assert [line["generator"] for line in lines[-2:]] == ["fresh", "fresh"]
    second = {t.task.id for update in (3, 4) for t in played(whole, update)}
    assert len(second) == 4 or failed <= second
    assert [entry.values["phase"] for entry in timeless(whole) if entry.kind == "update"] == [1, 1, 2, 2]
    assert any(note.startswith("phase 2: ") for note in notes(whole))
    with closing(open_pool(whole / "pool")) as pool:
        phases = {pool.get(entry.id).source["phase"] for entry in pool.find(Filter(channel="train"))}
    assert phases == {1, 2}


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_resumed_run_plays_the_very_same_tasks(whole: Path, tmp_path: Path, is_made_again: bool) -> None:
    folder = cut_back(whole, tmp_path / "run", 1)
    if is_made_again:  # killed before its second phase was stored
        (folder / "tasks" / "phase-0002.jsonl").unlink()
    train(resume=folder)
    same(whole, folder, update=4)
    assert stored_tasks(folder) == stored_tasks(whole)


def test_a_run_whose_stored_tasks_are_gone_does_not_resume(whole: Path, tmp_path: Path) -> None:
    folder = cut_back(whole, tmp_path / "run", 3)
    shutil.rmtree(folder / "tasks")
    with pytest.raises(ConfigError, match=r"the tasks of phase 1 .* are missing"):
        train(resume=folder)


def test_phases_need_a_generator_that_exists_and_episodes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='must be "fresh" or "evolve" or "endpoint" or module:function'):
        small_config("curriculum.generator=frsh")
    with pytest.raises(ConfigError, match="an offline run plays no tasks"):
        small_config("curriculum.updates_per_phase=1", f"offline.pool={tmp_path}")


@pytest.mark.slow
def test_adapters_are_compared_with_those_before_their_phase(tmp_path: Path) -> None:
    wish = ("policy.lora={rank=2}", "recipe.kl_coef=0.1", "curriculum.generator=fresh")
    folder = train(small_config(*PHASED, *wish, folder=tmp_path))
    found = [entry.values["kl"] for entry in timeless(folder) if entry.kind == "update"]
    assert found[::2] == pytest.approx([0.0, 0.0], abs=1e-6) and min(found[1::2]) > 1e-6
    stored = load_file(folder / "reference-000003.safetensors")
    assert stored and all("lora_" in name for name in stored)
    copy = cut_back(folder, tmp_path / "copy", 3)  # the second phase goes on with its reference
    train(resume=copy)
    same(folder, copy, update=4)
