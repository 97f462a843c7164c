"""What can go wrong in a run, and what it then says and leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runs.broken_envs import BrokenLake
from tests.runs.small import notes, played, small_components, small_config, timeless

from stepwell.config.run import RunConfig
from stepwell.core import (
    ConfigError,
    ContextLengthError,
    DivergenceError,
    EnvError,
    InfraError,
    ModelError,
    ParityError,
    Status,
    WeightsError,
)
from stepwell.monitors.summary import read_summary
from stepwell.runs.loop.sources import Batch
from stepwell.runs.loop.task_feeds import build_feed
from stepwell.runs.loop.training_loop import TrainingLoop
from stepwell.runs.run import train
from stepwell.training.checkpoint import find_damage, list_checkpoints

ENVS = "tests.runs.broken_envs"


# --- before anything starts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        (["policy.model=no/such/model"], ModelError, "neither a directory nor a built-in name"),
        (["engine.max_length=64"], ContextLengthError, r"must stay free.*first prompt of frozenlake.*engine"),
        ([f"env.name={ENVS}:OneLake", "env.held_out_share=0.9999"], ConfigError, "has no train task"),
        (["recipe.name=vagen-full"], ConfigError, "rewards grounding, world_modeling, which agent.strategy"),
        (
            ["env.name=sokoban", "env.options={}", 'recipe.reward_parts=["task","process"]'],
            ConfigError,
            "rewards process, but sokoban measures no progress",
        ),
        (["recipe.name=stepo"], ConfigError, "there is no recipe 'stepo'"),
        (
            ["recipe.name=grpo", "recipe.kl_estimator=full", "train.sharding=full"],
            ConfigError,
            "needs one device",
        ),
        ([f"env.name={ENVS}:BrokenLake", "env.options.place=begin"], EnvError, "the simulator is gone"),
    ],
)
def test_a_mistake_is_told_before_the_run_and_leaves_no_folder(
    tmp_path: Path, settings: list[str], kind: type[Exception], words: str
) -> None:
    BrokenLake.num_raised = 0
    with pytest.raises(kind, match=words):
        train(small_config(*settings, folder=tmp_path))
    assert not (tmp_path / "run").exists()


def test_an_env_without_held_out_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no held_out task: change"):
        train(small_config(f"env.name={ENVS}:OneLake", "env.held_out_share=0.0001", folder=tmp_path))


def test_an_env_with_fewer_tasks_than_asked_for_is_used_whole_and_said(tmp_path: Path) -> None:
    few = ("env.options={size=2, max_turns=2}", "train.num_tasks=4096", "eval.num_tasks=500")
    folder = train(small_config(*few, "train.num_updates=1", folder=tmp_path))
    told = notes(folder)
    assert any(text.startswith("train.num_tasks is 4096, but this environment has ") for text in told)
    assert any(text.startswith("eval.num_tasks is 500, but this environment has ") for text in told)
    summary = read_summary(folder)
    assert summary is not None and summary.before is not None
    assert f"has {summary.before.num_tasks};" in "".join(text for text in told if "eval" in text)


# --- while it runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["act", "observe", "state"])
def test_an_env_that_fails_twice_is_tried_again_and_trained_on(tmp_path: Path, place: str) -> None:
    BrokenLake.num_raised = 0
    settings = [f"env.name={ENVS}:BrokenLake", f"env.options.place={place}", "env.options.times=2"]
    if place == "state":
        settings += ["agent.strategy=grounding", "recipe.reward_parts=['task','grounding']"]
    folder = train(small_config(*settings, "train.num_updates=1", "eval.num_tasks=1", folder=tmp_path))
    assert BrokenLake.num_raised == 2
    (update,) = [entry for entry in timeless(folder) if entry.kind == "update"]
    assert update.update == 1  # the evaluation before may have met both failures, or the update some
    assert update.values["infra_errors"] in (0.0, 1.0, 2.0)


def test_an_env_that_fails_only_when_it_is_shown_costs_its_pictures_and_nothing_else(tmp_path: Path) -> None:
    settings = (
        f"env.name={ENVS}:Undrawable",
        "monitor.report=true",
        "train.num_updates=1",
        "eval.num_tasks=2",
    )
    folder = train(small_config(*settings, folder=tmp_path))
    told = "2 of 2 episodes are not shown step by step: .*:Undrawable raised SystemExit: no screen \ufffd"
    assert sum(re.fullmatch(told, note) is not None for note in notes(folder)) == 2
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished" and (folder / "report.html").exists()


def test_an_env_that_keeps_failing_stops_the_run_and_keeps_what_was_played(tmp_path: Path) -> None:
    BrokenLake.num_raised = 0
    world = f"env.name={ENVS}:BrokenLake"
    (held_out,) = small_components(world).list_held_out_tasks(1)
    broken = 2 - held_out.content["start"][0]  # type: ignore[index,operator]  # any other row but the middle
    broken = broken if broken != 1 else 0
    wish = (world, f"env.options.rows=[{broken}]", "eval.num_tasks=1", "train.tasks_per_update=8")
    config = small_config(*wish, folder=tmp_path)
    with pytest.raises(EnvError, match=r"update 1: \d+ episodes failed, also after 2 more tries.*is gone"):
        train(config)
    folder = tmp_path / "run"
    kept = played(folder, 1)
    assert len(kept) == 16
    failed = [t for t in kept if t.status is Status.INFRA_ERROR]
    assert 0 < len(failed) < 16
    assert all("the simulator is gone" in t.error for t in failed)
    assert all(t.task.content["start"][0] == broken for t in failed)  # type: ignore[index]
    summary = read_summary(folder)
    assert summary is not None and summary.status == "failed" and summary.success_before is not None


def test_replies_that_cannot_be_read_are_turns_in_which_nothing_happens(tmp_path: Path) -> None:
    folder = train(small_config("policy.model=tiny-0.3m", "train.num_updates=1", folder=tmp_path))
    replies = played(folder, 1)
    assert {t.status for t in replies} == {Status.FAILURE}
    for trajectory in replies:
        assert [step.reward for step in trajectory.steps] == [0.0, 0.0]
        assert [step.info["actions"] for step in trajectory.steps] == [[], []]
        assert trajectory.info["num_actions"] == 0
        assert all(step.info["problem"] for step in trajectory.steps)
    summary = read_summary(folder)
    assert summary is not None and summary.env_steps == 0


# --- updates that must not happen -------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["steppo", "rloo", "ppo"])
def test_rewards_beyond_all_bounds_stop_the_run_with_a_diagnosis(tmp_path: Path, recipe: str) -> None:
    rich = (f"env.name={ENVS}:RichLake", "env.options.reward=1e30", "checkpoint.every=1")
    with pytest.raises(DivergenceError, match=r"update 1: .*This step was not taken.*rewards\.scale"):
        train(small_config(*rich, f"recipe.name={recipe}", folder=tmp_path))
    checkpoints = list_checkpoints(tmp_path / "run/checkpoints")
    assert [path.name for path in checkpoints] == ["update-000000"]
    assert find_damage(checkpoints[0]) is None
    summary = read_summary(tmp_path / "run")
    assert summary is not None and summary.status == "failed"


def started(tmp_path: Path, *settings: str) -> TrainingLoop:
    """A loop whose first weights are published, with a monitor that remembers."""
    from stepwell.monitors import Monitor

    class Remember(Monitor):
        def __init__(self) -> None:
            self.said: list[str] = []

        def note(self, text: str) -> None:
            self.said.append(text)

    config = small_config(*settings)
    components = small_components(*settings)
    loop = TrainingLoop(config, tmp_path, components, Remember())
    loop._tasks = components.tasks("train", 8, 0)  # type: ignore[arg-type]
    loop._feed = build_feed(components, loop._tasks, tmp_path, tmp_path.name, print)
    loop._source = loop._make_source()
    components.trainer.freeze_reference()
    loop._publish()
    return loop


def weights_of(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loop.components.policy.state_dict().items()}


def unchanged(loop: TrainingLoop, before: dict[str, torch.Tensor]) -> bool:
    after = loop.components.policy.state_dict()
    return all(torch.equal(after[name].nan_to_num(), before[name].nan_to_num()) for name in before)


def test_a_poisoned_weight_stops_the_update_and_leaves_the_others_alone(tmp_path: Path) -> None:
    loop = started(tmp_path, "recipe.name=grpo")
    with torch.no_grad():
        next(iter(loop.components.policy.parameters()))[5, 0] = torch.nan
    before = weights_of(loop)
    with pytest.raises(DivergenceError, match=r"update 1: policy_logprobs: holds nan.*step was not taken"):
        loop._update()
    assert unchanged(loop, before)
    with pytest.raises(WeightsError):
        loop._publish()


def test_an_exploding_gradient_is_not_applied(tmp_path: Path) -> None:
    loop = started(tmp_path, "train.max_grad_norm=1e-9")
    before = weights_of(loop)
    with pytest.raises(DivergenceError, match=r"the gradient's norm .*is .* \(limit train.max_grad_norm"):
        loop._update()
    assert unchanged(loop, before)
    assert loop.state.update == 0


def test_a_learning_rate_beyond_all_bounds_is_noticed_before_anything_is_published(tmp_path: Path) -> None:
    loop = started(tmp_path, "train.optimizer.learning_rate=1e36", "train.update_epochs=2")
    with pytest.raises(DivergenceError):
        loop._update()
    assert loop.state.update == 0 and loop.components.engine.version == 0


def misreport_temperature(loop: TrainingLoop) -> None:
    """Let samples say another temperature than the engine sampled with."""
    source = loop._source
    own = source.batch

    def batch(update: int) -> Batch | None:
        found = own(update)
        assert found is not None
        for step in (step for trajectory in found.trajectories for step in trajectory.steps):
            step.sampling = replace(step.sampling, temperature=1.3)
        return found

    source.batch = batch  # type: ignore[method-assign]


def test_samples_of_another_temperature_stop_the_run_before_any_weight_changes(tmp_path: Path) -> None:
    loop = started(tmp_path)
    misreport_temperature(loop)
    before = weights_of(loop)
    told = (
        r"update 1: engine and trainer disagree .* \(worst: trajectory .*, step \d+ of .* parity\.tolerance"
    )
    with pytest.raises(ParityError, match=told):
        loop._update()
    assert unchanged(loop, before)


def test_weights_that_differ_too_little_for_any_logprob_stop_the_run(tmp_path: Path) -> None:
    loop = started(tmp_path)
    weights = {name: tensor.clone() for name, tensor in loop.components.policy.model_weights().items()}
    norm = weights["model.norm.weight"]
    norm[0] = torch.nextafter(norm[0], norm[0] + 1.0)
    loop.components.engine.load_weights(0, weights)
    before = weights_of(loop)
    with pytest.raises(ParityError, match=r"update 1: .*version 0 was published as .* the engine reports"):
        loop._update()
    assert unchanged(loop, before)


def test_a_mismatch_is_only_noted_where_that_was_asked_for(tmp_path: Path) -> None:
    loop = started(tmp_path, "parity.on_mismatch=warn")
    misreport_temperature(loop)
    before = weights_of(loop)
    loop._update()
    (note,) = loop.monitor.said  # type: ignore[attr-defined]
    assert note.startswith("update 1: engine and trainer disagree about fresh samples: logprobs differ by ")
    assert not unchanged(loop, before)


def test_engine_and_trainer_agree_on_what_was_just_sampled(tmp_path: Path) -> None:
    loop = started(tmp_path, "sampling.temperature=0.7", "sampling.top_p=0.9")
    gaps: list[float] = []
    loop._parity.judge_gaps = lambda place, found, _: gaps.append(found.max_abs)  # type: ignore[method-assign]
    loop._update()
    loop._update()
    assert len(gaps) == 2 and max(gaps) < 1e-5


# --- a full disk ------------------------------------------------------------------------------


def train_within(limit: int, config: RunConfig, told: Path) -> None:
    """In a process of its own, whose files may have so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(config)
    except InfraError as error:
        told.write_text(str(error))


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_told_and_the_rest_goes_on_later(tmp_path: Path) -> None:
    """The optimizer's state, the largest file of a checkpoint, is over the limit; the first ones are not."""
    wish = ("recipe.name=grpo", "recipe.kl_coef=0", "checkpoint.every=1")
    args = (2_000_000, small_config(*wish, folder=tmp_path), tmp_path / "error.txt")
    full = multiprocessing.get_context("fork").Process(target=train_within, args=args)
    full.start()
    full.join()
    told = (tmp_path / "error.txt").read_text()
    assert told.startswith("the checkpoint") and "update-000001 could not be written" in told
    folder = tmp_path / "run"
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["update-000000"]
    assert find_damage(folder / "checkpoints/update-000000") is None
    assert not list(folder.glob("checkpoints/.*"))
    train(resume=folder)
    assert [e.update for e in timeless(folder) if e.kind == "update"] == [1, 2]
    whole = train(small_config(*wish, folder=tmp_path, name="whole"))
    assert timeless(folder) == timeless(whole)


@pytest.mark.slow
def test_a_last_checkpoint_that_cannot_be_written_is_told_by_the_end_of_the_run(tmp_path: Path) -> None:
    config = small_config("recipe.name=grpo", "train.num_updates=1", folder=tmp_path)
    args = (2_000_000, config, tmp_path / "error.txt")
    full = multiprocessing.get_context("fork").Process(target=train_within, args=args)
    full.start()
    full.join()
    assert "update-000001 could not be written" in (tmp_path / "error.txt").read_text()
    summary = read_summary(tmp_path / "run")
    assert summary is not None and summary.status == "failed"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs the right to mount")
def test_a_disk_that_fills_up_costs_nothing_that_was_written(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(Exception, match=r"No space left|could not be written") as caught:
            train(small_config("checkpoint.every=1", "train.num_updates=3", folder=disk))
        assert type(caught.value).__name__ == "InfraError"
        folder = disk / "run"
        left = list_checkpoints(folder / "checkpoints")
        assert left and all(find_damage(path) is None for path in left)
        shutil.move(folder, tmp_path / "moved")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    train(resume=tmp_path / "moved")
    assert [e.update for e in timeless(tmp_path / "moved") if e.kind == "update"] == [1, 2, 3]
