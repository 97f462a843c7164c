"""Muon, in a precision that the device computes natively.

torch's own Muon always orthogonalises in bfloat16. A CPU without bfloat16 units must emulate it, and one step
of a tiny model then takes 20 to 200 times as long. Where oneDNN refuses such a product, torch prints a stack
trace and disables oneDNN for the rest of the process, which changes the last bits of all later results. Here
a matrix is orthogonalised

* in bfloat16 on a CUDA device with bfloat16 units;
* in its own precision (float32 or float64) everywhere else, also on CPUs with bfloat16 units, so that results
  do not depend on the CPU.

Invariant: the state uses torch's names, so that checkpoints of either class load in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x³ and x⁵ in one iteration, which moves every singular value in (0, 1] towards 1."""
NUM_ITERATIONS = 5
_TINY = 1e-7
Orthogonalize = Callable[[Tensor, Tensor], tuple[Tensor, int]]
"""From a parameter and its update: the orthogonalised update, and the longer side of the matrix. A shard's
rank gathers the matrix first."""


class Muon(torch.optim.Muon):
    """Orthogonalised Nesterov momentum with decoupled weight decay.

    The learning rate is scaled so that an update is as large as one of AdamW at the same rate.
    """

    def __init__(
        self,
        parameters: list[Any],
        *,
        rate: float,
        momentum: float,
        weight_decay: float,
        orthogonalize: Orthogonalize | None = None,
    ) -> None:
        super().__init__(
            parameters, lr=rate, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self._orthogonalize = orthogonalize or _orthogonalize_whole

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply the gradients."""
        assert closure is None, "the loss is not evaluated again"
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update, size = self._orthogonalize(parameter, self._look_ahead(parameter, momentum))
                parameter.mul_(1.0 - rate * group["weight_decay"])
                parameter.add_(update, alpha=-rate * 0.2 * size**0.5)
        return None

    def _look_ahead(self, parameter: Tensor, momentum: float) -> Tensor:
        """Update the momentum and return Nesterov's blend of it with the gradient."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        moment: Tensor = state["momentum_buffer"]
        moment.lerp_(gradient, 1.0 - momentum)
        return gradient.lerp(moment, momentum)


def _orthogonalize_whole(parameter: Tensor, update: Tensor) -> tuple[Tensor, int]:
    return orthogonalize(update), max(parameter.shape)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate U Vᵀ of a matrix U S Vᵀ by Newton-Schulz iterations: all singular values come near 1."""
    linear, cubic, quintic = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = (matrix.mT if is_tall else matrix).to(choose_dtype(matrix))
    wide = wide / wide.norm().clamp(min=_TINY)
    for _ in range(NUM_ITERATIONS):
        gram = wide @ wide.mT
        polynomial = torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic)
        wide = torch.addmm(wide, polynomial, wide, beta=linear)
    return (wide.mT if is_tall else wide).to(matrix.dtype)


def choose_dtype(matrix: Tensor) -> torch.dtype:
    """The precision in which a matrix is orthogonalised on its device."""
    if matrix.device.type == "cuda" and _has_bfloat16_units(matrix.device.index or 0):
        return torch.bfloat16
    return matrix.dtype if matrix.dtype in (torch.float32, torch.float64) else torch.float32


@cache
def _has_bfloat16_units(index: int) -> bool:
    if not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(index) >= (8, 0) or torch.version.hip is not None
