"""Training: minibatches, objective, optimizer, supervised warm start, checkpoints.

Names are imported on first use: splitting the work does not need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.training.batch import TrajectoryMinibatch
    from stepwell.training.batch_split import count_batches, split_trajectories
    from stepwell.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
    from stepwell.training.muon import Muon
    from stepwell.training.optimizer import Optimizer, rate_share
    from stepwell.training.sft import imitate
    from stepwell.training.trainer import Trainer

__all__ = [
    "Checkpoint",
    "Muon",
    "Optimizer",
    "Trainer",
    "TrajectoryMinibatch",
    "count_batches",
    "imitate",
    "list_checkpoints",
    "load_checkpoint",
    "rate_share",
    "save_checkpoint",
    "split_trajectories",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Checkpoint": "checkpoint",
        "Muon": "muon",
        "TrajectoryMinibatch": "batch",
        "Optimizer": "optimizer",
        "Trainer": "trainer",
        "imitate": "sft",
        "list_checkpoints": "checkpoint",
        "load_checkpoint": "checkpoint",
        "count_batches": "batch_split",
        "rate_share": "optimizer",
        "save_checkpoint": "checkpoint",
        "split_trajectories": "batch_split",
    },
)
