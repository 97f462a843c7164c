"""A run that replays earlier successes: which steps, how many, and the same after a resume."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from tests.runs.small import played, small_config, timeless
from tests.runs.test_resume import cut_back, same

from stepwell.config.loading import load_config
from stepwell.core import ConfigError
from stepwell.curriculum import ScoreFiles
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train

REPLAYED = (
    "recipe.name=webrl",
    "replay.min_perplexity=1.0",
    "replay.max_perplexity=50",
    "rewards.scale=1",
    "train.num_updates=6",
    "train.tasks_per_update=4",
    "train.num_tasks=40",
    "curriculum.updates_per_phase=2",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "eval.num_tasks=2",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*REPLAYED, folder=tmp_path_factory.mktemp("whole")))


def figures(folder: Path, name: str) -> list[float]:
    return [entry.values[name] for entry in timeless(folder) if entry.kind == "update"]


def test_earlier_successes_are_replayed_up_to_twice_the_fresh_steps(whole: Path) -> None:
    assert figures(whole, "replay/steps")[:2] == [0, 0]  # nothing was learnt from before the first phase
    assert sum(figures(whole, "replay/steps")) > 0
    fresh = [8 * turns for turns in figures(whole, "turns")]
    replayed = figures(whole, "replay/steps")
    assert all(steps <= 2 * count + 1e-6 for steps, count in zip(replayed, fresh, strict=True))


def test_the_buffer_holds_successes_of_earlier_updates(whole: Path) -> None:
    files = ScoreFiles(whole / "replay")
    assert files.list_updates() == [1, 3, 5]
    with closing(open_pool(whole / "pool")) as pool:
        for first in files.list_updates():
            for scored in files.read_scores(first):
                stored = pool.get(scored.id)
                assert stored.trajectory.is_success and stored.source["update"] < first
                assert len(scored.perplexities) == len(stored.trajectory.steps)


def test_the_pool_keeps_what_is_replayed_whatever_its_limit(whole: Path, tmp_path: Path) -> None:
    folder = cut_back(whole, tmp_path / "run", 4)
    limited = load_config(folder / "config.toml", ["checkpoint.trajectories_mb=0.001"])
    train(limited, resume=folder)
    ids = []
    for place in (whole, folder):
        with closing(open_pool(place / "pool")) as pool:
            ids.append({entry.id: entry.is_success for entry in pool.find(Filter(channel="train"))})
    assert len(ids[1]) < len(ids[0])
    assert {id for id, won in ids[0].items() if won} <= ids[1].keys()


@pytest.mark.slow
@pytest.mark.parametrize("update", [1, 3])
def test_a_resumed_run_replays_the_very_same_steps(whole: Path, tmp_path: Path, update: int) -> None:
    folder = cut_back(whole, tmp_path / "run", update)
    train(resume=folder)
    same(whole, folder, update=6)


def test_a_run_whose_scores_are_gone_does_not_resume_inside_their_phase(whole: Path, tmp_path: Path) -> None:
    folder = cut_back(whole, tmp_path / "run", 3)
    shutil.rmtree(folder / "replay")
    with pytest.raises(ConfigError, match="resume from a checkpoint before update 3"):
        train(resume=folder)


def test_a_clipped_ratio_learns_from_replay_with_the_truncated_correction(tmp_path: Path) -> None:
    settings = (
        "recipe.name=steppo",
        "replay.enabled=true",
        "train.num_updates=3",
        "train.tasks_per_update=8",
    )
    folder = train(small_config(*settings, *REPLAYED[1:3], "eval.num_tasks=0", folder=tmp_path))
    assert figures(folder, "replay/steps")[0] == 0 and sum(figures(folder, "replay/steps")) > 0
    corrected = [e.values for e in timeless(folder) if e.kind == "update" and e.values["replay/steps"]]
    assert all("correction" in values for values in corrected)
    assert not (folder / "replay").exists()  # every update is a period of its own


def test_digirl_can_have_a_buffer_of_successes_and_failures(tmp_path: Path) -> None:
    settings = (
        "recipe.name=digirl",
        "replay={enabled=true, with_failures=true, min_perplexity=1.0, max_perplexity=1e9}",
        "rewards.scale=1",
        "train.num_updates=2",
        "train.group_size=1",
    )
    folder = train(small_config(*settings, "eval.num_tasks=0", folder=tmp_path))
    first, second = figures(folder, "replay/steps")
    assert first == 0 < second and figures(folder, "replay/in_band")[1] == 1.0
    fresh = sum(len(each.steps) for each in played(folder, 2))
    assert second <= 2 * fresh + 2  # the last trajectory that is drawn counts whole


@pytest.mark.parametrize(
    ("recipe", "reason"), [("grpo", "compares siblings"), ("vanilla-ppo", "trains whole sequences")]
)
def test_replay_is_refused_where_its_steps_cannot_be_learnt_from(
    tmp_path: Path, recipe: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        train(small_config(f"recipe.name={recipe}", "replay.enabled=true", folder=tmp_path))
