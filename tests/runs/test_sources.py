"""Where an update's trajectories come from: nothing played is lost, nothing is learnt from twice."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch
from tests.runs.small import notes, played, small_components, small_config, timeless
from tests.runs.test_resume import cut_back, same
from tests.variants import keep_quick

from stepwell.core import ConfigError, InfraError, Outcome, Trajectory
from stepwell.packing import pack
from stepwell.policies import CausalLMPolicy
from stepwell.pool import Filter, open_pool
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.loop.sources import PlayedSource, StoredSource
from stepwell.runs.run import train
from stepwell.training import Trainer

RUN = ("recipe.name=steppo", "train.num_updates=6", "checkpoint.every=2", "checkpoint.keep=9")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*RUN, folder=tmp_path_factory.mktemp("whole")))


@pytest.fixture
def updates_played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The updates for which episodes were played, from now on."""
    seen: list[int] = []
    play = PlayedSource._play_jobs

    def watched(self: PlayedSource, update: int, jobs: object) -> object:
        seen.append(update)
        return play(self, update, jobs)  # type: ignore[arg-type]

    monkeypatch.setattr(PlayedSource, "_play_jobs", watched)
    return seen


@pytest.mark.slow
def test_episodes_played_before_a_crash_are_learnt_from_and_not_played_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates_played: list[int]
) -> None:
    learn = Trainer.update

    def dies(self: Trainer, *args: object, **options: object) -> dict[str, float]:
        if self.num_done == 3:
            raise InfraError("the machine is gone")
        return learn(self, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises(InfraError):
        patched.setattr(Trainer, "update", dies)
        train(small_config(*RUN, folder=tmp_path))
    assert updates_played == [1, 2, 3, 4]
    updates_played.clear()
    train(resume=tmp_path / "run")  # from the checkpoint of update 2
    assert updates_played == [5, 6]
    same(whole, tmp_path / "run")


@pytest.mark.slow
def test_an_older_checkpoint_gets_back_what_later_ones_had_learnt_from(
    whole: Path, tmp_path: Path, updates_played: list[int]
) -> None:
    folder = cut_back(whole, tmp_path / "run", 2)
    train(resume=folder)
    assert updates_played == []
    same(whole, folder)
    with closing(open_pool(folder / "pool")) as pool:
        assert {entry.state for entry in pool.find(Filter(channel="train"))} == {"consumed"}


def test_without_its_pool_a_run_plays_the_same_again(
    whole: Path, tmp_path: Path, updates_played: list[int]
) -> None:
    folder = cut_back(whole, tmp_path / "run", 4)
    shutil.rmtree(folder / "pool")
    train(resume=folder)
    assert updates_played == [5, 6]
    same(whole, folder)


@pytest.mark.slow
def test_old_trajectories_go_when_the_disk_they_may_use_is_full(tmp_path: Path) -> None:
    every = (*RUN, "checkpoint.every=1", "checkpoint.trajectories_mb=0.02", "eval.num_tasks=1")
    folder = train(small_config(*every, folder=tmp_path))
    assert played(folder, 1) == [] and len(played(folder, 6)) == 8


# --- offline ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of an expert's episodes, some of them marked."""
    path = tmp_path_factory.mktemp("demos") / "pool.db"
    components = small_components("recipe.name=grpo")
    shown = components.play_demonstrations(24, 0.3, 0)
    with closing(open_pool(path)) as pool:
        for trajectory in shown:
            trajectory.group = ""
        pool.add(shown[:20], channel="user")
        pool.add(shown[20:], channel="user", tags=("doubtful",))
    return path


OFFLINE = (
    "rewards.scale=1",
    "eval.num_tasks=0",
    "train.tasks_per_update=6",
    "train.group_size=1",
    "train.num_updates=4",
)


def mean_logprob(model: Path, trajectories: list[Trajectory]) -> float:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    with torch.no_grad():
        rows = CausalLMPolicy.from_pretrained(model).logprobs(pack(steps))
    return sum(float(row.sum()) for row in rows) / sum(step.num_units for step in steps)


@pytest.mark.parametrize(
    "recipe", keep_quick(["sft", "filtered-bc", "awr", "webrl"], ("sft", "webrl").__contains__)
)
def test_a_stored_pool_is_learnt_from_without_playing(
    recipe: str, demos: Path, tmp_path: Path, updates_played: list[int]
) -> None:
    settings = (*OFFLINE, f"recipe.name={recipe}", f"offline.pool={demos}", "checkpoint.every=1")
    folder = train(small_config(*settings, "checkpoint.keep=9", folder=tmp_path))
    assert updates_played == []
    assert any("24 trajectories" in note for note in notes(folder))
    assert [entry.kind for entry in timeless(folder)] == ["update"] * 4
    with closing(open_pool(demos)) as pool:
        stored = list(pool.trajectories())
        assert {entry.state for entry in pool.find()} == {"ready"}  # only read
    wins = [t for t in stored if t.status.value == "success"]
    first, last = (folder / f"checkpoints/update-00000{n}" for n in (0, 4))
    assert mean_logprob(last, wins) > mean_logprob(first, wins) + 1e-3


def test_stored_steps_are_rewarded_by_the_parts_that_the_recipe_asks_for(demos: Path, tmp_path: Path) -> None:
    def rewards(*settings: str) -> dict[str, list[float | None]]:
        config = small_config(f"offline.pool={demos}", "rewards.scale=1", *settings)
        source = StoredSource(config, resolve_recipe(config.recipe))
        batch = source.batch(1)
        source.close()
        return {t.status.value: [step.reward for step in t.steps] for t in batch.trajectories}

    outcome = rewards("recipe.name=awr")
    assert outcome["success"][-1] == 1.0 and set(outcome["failure"]) == {0.0}
    both = rewards("recipe.name=grpo", "recipe.reward_parts=['task', 'format']")
    assert both["success"][-1] is not None and both["success"][-1] > 10  # the goal, a move or two, the form
    assert set(rewards("recipe.name=sft")["success"]) == {0.0}
    with pytest.raises(ConfigError, match="rewards grounding, but step 0 of"):
        rewards("recipe.name=grpo", "recipe.reward_parts=['grounding']")


def test_offline_settings_choose_among_trajectories(demos: Path, tmp_path: Path) -> None:
    sure = (*OFFLINE, "recipe.name=sft", f"offline.pool={demos}", "offline.without_tags=['doubtful']")
    assert any("20 trajectories" in note for note in notes(train(small_config(*sure, folder=tmp_path))))
    with pytest.raises(ConfigError, match=r"no finished trajectory with steps.*channel 'train'"):
        train(small_config(*sure, "offline.channel=train", folder=tmp_path, name="none"))


def test_judged_outcomes_decide_what_an_offline_run_learns_from(demos: Path, tmp_path: Path) -> None:
    place = shutil.copy(demos, tmp_path / "judged.db")
    with closing(open_pool(place)) as pool:
        won, lost = (list(pool.find(Filter(is_success=wanted))) for wanted in (True, False))
        for entry in won[1:]:
            pool.assign_outcome(entry.id, Outcome(0.1, "outcome_model"))
        pool.assign_outcome(lost[0].id, Outcome(0.8, "human"))
    chosen = (*OFFLINE, "recipe.name=awr", f"offline.pool={place}", "offline.success=true")
    folder = train(small_config(*chosen, "train.num_updates=2", folder=tmp_path))
    assert any("offline: 2 trajectories" in note for note in notes(folder))
    first = timeless(folder)[0].values
    assert (first["success"], first["reward/outcome"], first["judged"]) == (1.0, 1.0, 0.5)


def test_an_offline_run_goes_on_where_it_stopped(demos: Path, tmp_path: Path) -> None:
    settings = (*OFFLINE, "recipe.name=awr", f"offline.pool={demos}", *RUN[1:])
    once = train(small_config(*settings, folder=tmp_path, name="once"))
    folder = cut_back(once, tmp_path / "again", 2)
    train(resume=folder)
    paths = [f / "checkpoints/update-000006" for f in (once, folder)]
    one, other = (CausalLMPolicy.from_pretrained(path).state_dict() for path in paths)
    assert all((one[key] == other[key]).all() for key in one)
