"""Losses: from advantages and log-probabilities to one number to minimise, and metrics.

Policy losses take a `LossInputs` and return `(loss, metrics)`; gradient flows into
`policy_logprobs` only. Critic losses take values and targets, the entropy bonus takes entropies.
Metrics are detached 0-dim tensors on the device of the inputs. Each is a weighted mean with the
loss's own weights, so over the microbatches of a minibatch they add up, as the losses do.
"""

from collections.abc import Callable

from torch import Tensor

from stepwell.algos.losses.awr import awr_loss
from stepwell.algos.losses.dpo import dpo_loss
from stepwell.algos.losses.entropy import entropy_bonus
from stepwell.algos.losses.imitation import filtered_bc_loss, select_best_trajectories, sft_loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.losses.ppo import ppo_loss
from stepwell.algos.losses.reduction import MinibatchCounts, Reduction
from stepwell.algos.losses.reinforce import reinforce_loss
from stepwell.algos.losses.value import value_bce, value_mse
from stepwell.algos.losses.webrl import webrl_loss

LOSSES: dict[str, Callable[..., tuple[Tensor, Metrics]]] = {
    "ppo_loss": ppo_loss,
    "webrl_loss": webrl_loss,
    "awr_loss": awr_loss,
    "reinforce_loss": reinforce_loss,
    "sft_loss": sft_loss,
    "filtered_bc_loss": filtered_bc_loss,
    "dpo_loss": dpo_loss,
}

VALUE_LOSSES: dict[str, Callable[..., tuple[Tensor, Metrics]]] = {
    "value_mse": value_mse,
    "value_bce": value_bce,
}

__all__ = [
    "LOSSES",
    "VALUE_LOSSES",
    "LossInputs",
    "Metrics",
    "MinibatchCounts",
    "Reduction",
    "awr_loss",
    "dpo_loss",
    "entropy_bonus",
    "filtered_bc_loss",
    "ppo_loss",
    "reinforce_loss",
    "select_best_trajectories",
    "sft_loss",
    "value_bce",
    "value_mse",
    "webrl_loss",
]
