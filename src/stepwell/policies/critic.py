"""Critics: state values computed from hidden states.

A *shared* critic is a value head on the actor's last hidden states: one forward pass
serves both, and both train the backbone. An *own* critic has a separate backbone, which
starts as a copy of the actor's; the two share no weights.

A critic has a *link*, from what its head puts out to a value. With `identity` the output is the value,
trained by squared error. With `logit` the output is a logit and the value a probability, trained by
cross-entropy. `Outputs.values` are outputs of the head; `policy.values` and `state_values` are values.

Invariants
* The head computes at least in float32, whatever the backbone's dtype.
* A link is chosen once, by the first recipe that trains the critic. It is saved with the weights, and another
  one is refused: numbers learnt as returns are not logits.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from stepwell.core import ConfigError

CriticKind = Literal["shared", "own"]
CriticLink = Literal["identity", "logit"]
INITIAL_VALUE_SCALE = 0.1
"""Spread of the values of a new head: small compared to rewards, but not zero without a gradient."""
_MEANINGS = {"identity": "returns", "logit": "probabilities of success"}


def apply_link(link: CriticLink | None, outputs: Tensor) -> Tensor:
    """The values that a head's outputs stand for; a link that is not chosen yet is the identity."""
    return outputs.sigmoid() if link == "logit" else outputs


class ValueHead(nn.Module):
    """One linear map from a hidden state to a value. New heads always have the same weights."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        draw = torch.randn(hidden_size, generator=torch.Generator().manual_seed(0), dtype=wide)
        self.weight = nn.Parameter(draw * (INITIAL_VALUE_SCALE / hidden_size**0.5))
        self.bias = nn.Parameter(torch.zeros((), dtype=wide))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., H] to [...]."""
        return hidden.to(self.weight.dtype) @ self.weight + self.bias


class CriticModel(nn.Module):
    """A value head, its link, and its backbone if it has its own. `link` is None until a recipe trains it."""

    def __init__(self, head: ValueHead, backbone: Any | None, link: CriticLink | None = None) -> None:
        super().__init__()
        self.head = head
        self.backbone: Any | None = backbone
        self.link: CriticLink | None = link

    @property
    def kind(self) -> CriticKind:
        return "shared" if self.backbone is None else "own"

    def choose_link(self, link: CriticLink) -> None:
        """Give a new critic its link; a critic that has another one is refused."""
        if self.link not in (None, link):
            raise ConfigError(
                f"the policy's critic was trained to give {_MEANINGS[str(self.link)]}, this recipe reads "
                f"{_MEANINGS[link]}; start from the model without its critic (stepwell export)"
            )
        self.link = link

    def read_values(self, outputs: Tensor) -> Tensor:
        """The values that outputs of the head stand for."""
        return apply_link(self.link, outputs)
