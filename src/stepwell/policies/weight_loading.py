"""The weights of a policy: listed, loaded as a whole or refused, and as parts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from stepwell.core import WeightsError
from stepwell.core.weight_parts import WeightParts


class PolicyWeights:
    """A policy's actor and critics in one module."""

    module: nn.ModuleDict

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what is trained: the model or its adapters, and the critics."""
        return (parameter for parameter in self.module.parameters() if parameter.requires_grad)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return what is trained, with names as in `state_dict`."""
        return (item for item in self.module.named_parameters() if item[1].requires_grad)

    def state_dict(self) -> dict[str, Tensor]:
        """Return every weight of actor and critics, under `model.`, `critic.` and `instruction_critic.`."""
        return self.module.state_dict()


def load_module_weights(module: nn.Module, weights: dict[str, Tensor], must_share: str) -> None:
    """Load weights with the same names and shapes. `must_share` tells what both sides must have in common."""
    own = module.state_dict()
    wrong = sorted(own.keys() ^ weights.keys())
    wrong += sorted(name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape)
    if wrong:
        raise WeightsError(
            f"{len(wrong)} weights are missing, unknown or have another shape (first: {wrong[0]}); "
            f"load weights saved from the same {must_share}"
        )
    module.load_state_dict(weights)


def list_parts(model: nn.Module) -> WeightParts:
    """The weights of a model without adapters, and which of them are never trained."""
    frozen = frozenset(name for name, one in model.named_parameters() if not one.requires_grad)
    return WeightParts(model.state_dict(), frozen=frozen)
