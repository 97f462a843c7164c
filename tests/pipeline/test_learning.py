"""The whole loop learns: ten boards by heart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepwell.config.loading import load_config
from stepwell.core import Split
from stepwell.monitors import Monitor
from stepwell.pipeline.evaluation import evaluate
from stepwell.pipeline.loop import SyncLoop
from stepwell.pipeline.parts import Parts

SETTINGS = (
    "env.options={size=3, max_turns=2}",
    "agent.guide=false",
    "policy.model=tiny-0.3m",
    "sampling.max_tokens=10",
    "rewards.scale=0.1",
    "rewards.format=2.0",
    "warm_start.num_demos=10",
    "warm_start.batch_size=10",
    "warm_start.epochs=32",
    "warm_start.optimizer.learning_rate=3e-3",
    "recipe.name=rloo",
    "recipe.kl_coef=0",
    "recipe.reward_parts=['task', 'format']",
    "train.num_tasks=10",
    "train.tasks_per_update=10",
    "train.group_size=10",
    "train.num_updates=150",
    "train.optimizer.learning_rate=1e-3",
    "num_threads=1",
)


@pytest.mark.slow
def test_ten_boards_half_known_from_demonstrations_are_learnt_by_heart(tmp_path: Path) -> None:
    """Sampled as in training, so that luck with one greedy answer does not count."""
    config = load_config(None, SETTINGS)
    torch.manual_seed(0)
    parts = Parts(config)
    loop = SyncLoop(config, tmp_path, parts, Monitor())
    loop._tasks = boards = parts.tasks(Split.TRAIN, 10, config.seed)
    loop._warm_start()
    loop._publish()

    def success() -> float:
        return evaluate(parts, boards, temperature=1.0, samples_per_task=6).success

    before = after = success()
    while loop.state.update < config.train.num_updates and after < 0.9:
        loop._update()
        if loop.state.update % 10 == 0:
            after = success()
    assert before <= 0.65
    assert after >= 0.9
