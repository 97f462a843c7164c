"""True float64 gradients in models whose norms compute in float32.

Norm layers of current model families cast to float32. In a float64 model this rounds every
gradient that passes through them to seven digits, and *where* it is rounded depends on how
steps are packed. For float64 policies (tests, gradient checks) these layers keep their
output bit for bit, but compute their derivative in float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _KeepFloat64(TorchFunctionMode):
    """Makes casts of float64 tensors to float32 do nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_cast = func is Tensor.float or (func is Tensor.to and torch.float32 in (*args, *kwargs.values()))
        if is_cast and args[0].dtype is torch.float64:
            return args[0]
        return func(*args, **kwargs)


@cache
def _add_double_gradient(kind: Any) -> Any:
    def forward(self: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = kind.forward(self, hidden, *args, **kwargs)
        if not torch.is_grad_enabled() or hidden.dtype is not torch.float64:
            return output
        with _KeepFloat64():
            exact: Tensor = kind.forward(self, hidden, *args, **kwargs)
        return exact + (output - exact).detach()

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def take_gradients_in_float64(model: nn.Module) -> None:
    """Change the norm layers of `model` in place; layers of torch itself are exact already."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__.endswith("Norm") and not kind.__module__.startswith("torch."):
            module.__class__ = _add_double_gradient(kind)
