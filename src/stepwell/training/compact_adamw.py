"""AdamW whose moments take less memory on the device: in 8 bits, or in the host's memory.

    step ─► for every parameter: read its moments ─► torch's own AdamW on it ─► write its moments

Only one parameter's moments are on the device in full at a time.

* `HostMoments` keeps them in the host's memory (pinned beside a GPU). Numbers are those of plain AdamW, bit
  for bit; the price is a transfer of 16 bytes per parameter and step.
* `ByteMoments` keeps one byte per number and one float32 per block of 256. A byte stands for a power of the
  share in its block's largest number: the second for the mean of gradients, with its sign, the fourth for the
  mean of squares, whose square root divides. So small numbers stay apart from zero. Squares are rounded up:
  no update grows by rounding.

A checkpoint holds the moments in the form that is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adamw import adamw

from stepwell.core import WeightsError

BLOCK = 256
_SIGNED, _UNSIGNED = 127, 255


class Moments(Protocol):
    """How two tensors of moments are kept in a parameter's state."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of a state."""

    def make(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of moments that are all zero."""

    def read(self, state: dict[str, Tensor], parameter: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of gradients and the mean of squares, on the parameter's device."""

    def write(self, state: dict[str, Tensor], mean: Tensor, square: Tensor) -> None:
        """Keep new moments."""

    def finish(self, device: torch.device) -> None:
        """Called after the last parameter of a step."""


class HostMoments:
    """Moments in the host's memory."""

    names = ("mean", "square")

    def make(self, parameter: Tensor) -> dict[str, Tensor]:
        return {
            name: torch.zeros(parameter.shape, dtype=parameter.dtype, pin_memory=parameter.is_cuda)
            for name in self.names
        }

    def read(self, state: dict[str, Tensor], parameter: Tensor) -> tuple[Tensor, Tensor]:
        mean, square = (state[name].to(parameter.device, non_blocking=True) for name in self.names)
        return mean, square

    def write(self, state: dict[str, Tensor], mean: Tensor, square: Tensor) -> None:
        state["mean"].copy_(mean, non_blocking=True)  # on a GPU the next read waits in the same queue
        state["square"].copy_(square, non_blocking=True)

    def finish(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # from here on anyone may read them


class ByteMoments:
    """Moments in 8 bits on the parameter's device."""

    names = ("mean_codes", "mean_tops", "square_codes", "square_tops")

    def make(self, parameter: Tensor) -> dict[str, Tensor]:
        blocks = -(-parameter.numel() // BLOCK)

        def fill(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=parameter.device)

        return {
            "mean_codes": fill(torch.int8, blocks, BLOCK),
            "mean_tops": fill(torch.float32, blocks, 1),
            "square_codes": fill(torch.uint8, blocks, BLOCK),
            "square_tops": fill(torch.float32, blocks, 1),
        }

    def read(self, state: dict[str, Tensor], parameter: Tensor) -> tuple[Tensor, Tensor]:
        share = state["mean_codes"].float() / _SIGNED
        mean = share * share.abs() * state["mean_tops"]
        square = (state["square_codes"].float() / _UNSIGNED).pow(4) * state["square_tops"]
        shaped = (_cut_blocks(side, parameter) for side in (mean, square))
        first, second = shaped
        return first, second

    def write(self, state: dict[str, Tensor], mean: Tensor, square: Tensor) -> None:
        for name, side in (("mean", mean), ("square", square)):
            blocks = _form_blocks(side)
            tops = blocks.abs().amax(1, keepdim=True)
            share = blocks / tops.clamp(min=torch.finfo(torch.float32).tiny)
            if name == "mean":
                codes = (share.abs().sqrt() * share.sign() * _SIGNED).round()
            else:
                codes = (share.sqrt().sqrt() * _UNSIGNED).ceil().clamp(max=_UNSIGNED)
            state[f"{name}_codes"].copy_(codes)
            state[f"{name}_tops"].copy_(tops)

    def finish(self, device: torch.device) -> None:
        """Nothing is pending."""


def _form_blocks(side: Tensor) -> Tensor:
    flat = side.float().flatten()
    return F.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)


def _cut_blocks(blocks: Tensor, parameter: Tensor) -> Tensor:
    return blocks.flatten()[: parameter.numel()].view(parameter.shape).to(parameter.dtype)


class CompactAdamW(torch.optim.Optimizer):
    """AdamW with moments kept elsewhere or in fewer bits."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        moments: Moments,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})
        self._moments = moments

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply the gradients."""
        assert closure is None, "the loss is not evaluated again"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update_parameter(parameter, group)
        self._moments.finish(self.param_groups[0]["params"][0].device)
        return None

    def _update_parameter(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state.update(self._moments.make(parameter))
        mean, square = self._moments.read(state, parameter)
        beta1, beta2 = group["betas"]
        assert parameter.grad is not None
        adamw(
            [parameter],
            [parameter.grad],
            [mean],
            [square],
            [],
            [state["step"]],
            foreach=False,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        self._moments.write(state, mean, square)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; moments stay in the form in which they are kept."""
        saved = state_dict["state"]
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, held in saved.items():
            self.load_moments(parameters[index], held)

    def load_moments(self, parameter: Tensor, held: Mapping[str, Tensor]) -> None:
        """Go on with the saved state of one parameter."""
        if set(held) != {"step", *self._moments.names}:
            raise WeightsError(
                "the checkpoint holds moments of another form; "
                "train.optimizer.state must not change on resume"
            )
        state = self.state[parameter] = self._moments.make(parameter)
        for name in self._moments.names:
            state[name].copy_(held[name])
        state["step"] = held["step"].clone().cpu()
