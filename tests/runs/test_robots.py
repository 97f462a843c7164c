"""Runs of robot policies, whole: warm start, updates, evaluation, checkpoints, resume, report."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.policies.vla.point_env import NAME
from tests.runs.small import notes, played, timeless

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Split, Status
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.replays import load_replays
from stepwell.policies.vla import VLAPolicy
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.evaluate import evaluate_run
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train
from stepwell.training.checkpoint import list_checkpoints

SMALL = (
    f'env.name="{NAME}"',
    "num_threads=1",
    "policy.critic=own",
    "policy.vla={chunk=4, width=48, noise_level=1.0}",
    "warm_start.num_demos=24",
    "warm_start.noise=0.3",
    "warm_start.batch_size=32",
    "recipe.kl_coef=0",
    "train.tasks_per_update=8",
    "train.group_size=2",
    "train.num_tasks=64",
    "train.micro_batch=20",
    "eval.num_tasks=12",
    "eval.every=0",
    "monitor.console=false",
    "monitor.tensorboard=false",
)


def config(*settings: str, folder: Path | None = None, name: str = "run") -> RunConfig:
    where = [] if folder is None else [f"folder={folder}", f"name={name}"]
    return load_config(None, [*SMALL, *where, *settings])


@pytest.mark.slow
@pytest.mark.parametrize("head", ["token", "flow"])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(head: str, tmp_path: Path) -> None:
    settings = (f"policy.vla.head={head}", "train.num_updates=4", "checkpoint.every=2", "recipe.kl_coef=0.01")
    whole = train(config(*settings, folder=tmp_path, name="whole"))
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "update-000004")
    train(resume=cut)
    later = [[e for e in timeless(folder) if e.update > 2] for folder in (whole, cut)]
    assert later[0] and later[0] == later[1][-len(later[0]) :]
    weights = [
        VLAPolicy.from_pretrained(list_checkpoints(f / "checkpoints")[-1]).state_dict() for f in (whole, cut)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_leaves_steps_a_report_and_a_policy_that_can_be_evaluated(tmp_path: Path) -> None:
    folder = train(config("train.num_updates=2", folder=tmp_path))
    steps = [step for t in played(folder, 1) for step in t.steps]
    assert len(played(folder, 1)) == 16
    for step in steps:
        assert step.num_units == step.action.chunk.size == step.behavior_logprobs.size
        assert step.action.draws["bins"].shape == step.action.chunk.shape
    replays = load_replays(folder / "replays.json")
    assert {replay.stage for replay in replays} == {"before", "after"}
    assert all(frame.image_png and frame.value is not None for frame in replays[0].frames)
    first = Image.open(io.BytesIO(replays[0].frames[0].image_png or b""))
    assert first.size == (160, 160)  # the policy sees no image: people are shown a larger one than 64 by 64
    assert "The point is at" in replays[0].frames[0].observation
    assert (folder / "report.html").stat().st_size > 10_000
    assert any("demonstrations" in note for note in notes(folder))
    last = [entry for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "eval"][-1]
    report = evaluate_run(list_checkpoints(folder / "checkpoints")[-1], config())
    assert report.result.success == last.values["success"] and "format_share" not in last.values


def test_the_plan_of_a_robots_run_says_what_it_is_made_of() -> None:
    text = plan_run(config("policy.vla.head=flow"))
    assert "flow head, chunks of 4 x 2, 4 denoising steps" in text
    assert "sees        proprio [2], state [2], and an instruction" in text
    assert "microbatches each" in text and len(text.splitlines()) <= 30


def test_settings_that_a_robot_cannot_follow_are_refused() -> None:
    for settings, words in (
        (("recipe.name=vanilla-ppo",), "flat token sequences"),
        (("recipe.name=turn-ppo",), "rewards format; a robot's step has task, outcome, process"),
        (("own_agent.function=a:b",), "own_agent.function"),
        (("policy.lora.rank=2",), "policy.lora"),
    ):
        with pytest.raises(ConfigError, match=words):
            Components(config(*settings)).prepare()


def test_camera_images_alone_are_enough_to_play_and_to_learn(tmp_path: Path) -> None:
    folder = train(
        config(
            'env.options={observation="camera"}', "train.num_updates=1", "eval.num_tasks=4",
            "warm_start.max_updates=2", "monitor.report=false", folder=tmp_path,
        )
    )  # fmt: skip
    (update,) = [entry for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "update"]
    assert update.values["grad_norm"] > 0
    assert {tuple(step.state.arrays) for t in played(folder, 1) for step in t.steps} == {("proprio", "top")}


def test_a_dense_reward_and_its_weight_reach_the_steps() -> None:
    components = Components(config("rewards.process=0.5", 'recipe.reward_parts=["task", "process"]'))
    shown = components.play_demonstrations(3, 0.0, 0)
    assert all(t.status is Status.SUCCESS for t in shown)
    for trajectory in shown:
        assert trajectory.total_reward > 1.0
        assert {name for step in trajectory.steps for name in step.reward_parts} == {"task", "process"}
    assert components.tasks(Split.TRAIN, 2, 0)[0].split(0.2) is Split.TRAIN


LEARNING = (
    "warm_start.epochs=40", "warm_start.stop_at=0.35", "warm_start.check_every=2",
    "train.tasks_per_update=64", "train.num_tasks=1024", "train.minibatches=2", "train.update_epochs=2",
    "train.micro_batch=none", "train.critic_learning_rate=1e-3", "train.optimizer.learning_rate=3e-4",
    "eval.num_tasks=128", "monitor.report=false", "checkpoint.every=0",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("head", "recipe"), [("token", "steppo"), ("flow", "grpo"), ("flow", "steppo")])
def test_reinforcement_makes_a_weak_imitator_clearly_better(head: str, recipe: str, tmp_path: Path) -> None:
    groups = ("train.tasks_per_update=8", "train.group_size=8") if recipe == "grpo" else ()
    settings = (*LEARNING, f"policy.vla.head={head}", f"recipe.name={recipe}", "eval.every=8", *groups)

    def measure_rise(folder: Path) -> float:
        entries = read_entries(folder / "metrics.jsonl")
        before, *later = (entry.values["success"] for entry in entries if entry.kind == "eval")
        assert 0.15 <= before <= 0.7
        return max(later) - before

    # The best of four evaluations, not one of them: flow with steppo went from 0.46 to 0.93 with ATen's
    # plainest kernels, and single evaluations of it lay anywhere between.
    # With 64 episodes an update, token went to 0.90, 0.93 and 0.91 (seeds 0, 3, 4); with 32, seed 0 fell.
    # Flow with steppo rose from 0.35, 0.49, 0.37 to 0.59, 0.73, 0.83 after 8 updates, and to 0.91, 0.81, 0.96
    # after 24 (seeds 0, 1, 2, on a Xeon).
    folder = train(config(*settings, "train.num_updates=8", folder=tmp_path))
    for num_updates in (16, 32):  # as long as it may take, but no longer than it does
        if measure_rise(folder) < 0.2:
            train(config(*settings, f"train.num_updates={num_updates}", folder=tmp_path), resume=folder)
    assert measure_rise(folder) >= 0.2
