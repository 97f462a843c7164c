"""The whole loop learns: ten boards by heart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepwell.config.loading import load_config
from stepwell.core import Split
from stepwell.monitors import Monitor
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.held_out import evaluate
from stepwell.runs.loop.task_feeds import build_feed
from stepwell.runs.loop.training_loop import TrainingLoop

SETTINGS = (
    "env.options={size=3, max_turns=2}",
    "agent.guide=false",
    "policy.model=tiny-0.3m",
    "sampling.max_tokens=10",
    "rewards.scale=0.1",
    "rewards.format=2.0",
    "warm_start.num_demos=10",
    "warm_start.batch_size=10",
    "warm_start.optimizer.learning_rate=3e-3",
    "recipe.name=rloo",
    "recipe.kl_coef=0",
    "recipe.reward_parts=['task', 'format']",
    "train.num_tasks=10",
    "train.tasks_per_update=10",
    "train.group_size=10",
    "train.optimizer.learning_rate=3e-4",
    "num_threads=1",
)


class Learner:
    """A loop on ten boards, measured on those boards by sampling as in training."""

    def __init__(self, folder: Path, *settings: str) -> None:
        config = load_config(None, [*SETTINGS, *settings])
        torch.manual_seed(config.seed)
        self.loop = TrainingLoop(config, folder, Components(config), Monitor())
        self.loop._tasks = self.boards = self.loop.components.tasks(Split.TRAIN, 10, config.seed)
        self.loop._feed = build_feed(self.loop.components, self.boards, folder, folder.name, print)
        self.loop._source = self.loop._make_source()
        self.loop._warm_start()
        self.loop._publish()

    def success(self) -> float:
        return evaluate(self.loop.components, self.boards, temperature=1.0, samples_per_task=8).success

    def update(self, count: int) -> None:
        for _ in range(count):
            self.loop._update()


@pytest.mark.slow
def test_ten_boards_are_learnt_by_heart_and_kept(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "warm_start.epochs=70")
    assert learner.success() >= 0.9
    learner.update(8)
    assert learner.success() >= 0.9


@pytest.mark.slow
def test_boards_half_known_from_demonstrations_are_known_better_after_reinforcement(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "warm_start.epochs=32", "seed=1")
    before = learner.success()
    assert before < 0.6
    learner.update(16)
    for _ in range(3):  # as long as it may take, but no longer than it does
        if learner.success() < before + 0.15:
            learner.update(8)
    assert learner.success() >= before + 0.15
