"""Trajectories to better weights: minibatches, objective, optimizer, supervised start, checkpoints."""

from stepwell.training.batch import Minibatch, split
from stepwell.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from stepwell.training.optimizer import Optimizer, rate_share
from stepwell.training.sft import imitate, num_batches
from stepwell.training.trainer import Trainer

__all__ = [
    "Checkpoint",
    "Minibatch",
    "Optimizer",
    "Trainer",
    "imitate",
    "list_checkpoints",
    "load_checkpoint",
    "num_batches",
    "rate_share",
    "save_checkpoint",
    "split",
]
