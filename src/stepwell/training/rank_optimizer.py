"""The optimizer of all ranks: each steps on its own shards (`rank_worker.py`)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.training.ranks import Ranks


class RankOptimizer:
    """The optimizer of all ranks, with the calls of `Optimizer` that an update makes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._share, self._is_finite = ranks, 1.0, True

    def set_rate(self, share: float) -> None:
        """Set every learning rate to its configured value times `share`."""
        self._share = share

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        self._ranks.call("zero")

    def clip_gradients(self, limit: float) -> dict[str, Tensor]:
        """Clip the gradients of actor and critics to this norm each; returns the norms before clipping."""
        norms = self._ranks.call("clip", limit=limit)[0].words["norms"]
        return {name: torch.tensor(norm) for name, norm in norms.items()}

    def step(self, *, moves_actor: bool = True) -> None:
        """Apply the gradients; without `moves_actor` those of the critics alone."""
        answers = self._ranks.call("step", share=self._share, moves_actor=moves_actor)
        self._is_finite = all(answer.words["is_finite"] for answer in answers)

    def are_weights_finite(self) -> bool:
        """Whether all trained weights are finite since the last step."""
        return self._is_finite
