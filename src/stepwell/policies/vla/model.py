"""The network of a robot policy: an encoder and a head, built for the arrays and actions of one environment.

Engines run this module, trainers train it, and its state dict is what is published. It is built from a
`VLAShape`, which is saved beside the weights, so that the directory alone is enough to open it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.config.vla import VLAConfig
from stepwell.core import ArraySpec, RobotEnvDescription
from stepwell.policies.vla.encoder import Encoder
from stepwell.policies.vla.heads import HEADS, FlowHead, TokenHead

MODEL_TYPE = "stepwell_vla"


@dataclass(frozen=True, slots=True)
class VLAShape:
    """The inputs, outputs and size of a model."""

    config: VLAConfig
    arrays: dict[str, ArraySpec]
    action_dim: int

    @classmethod
    def for_env(cls, config: VLAConfig, description: RobotEnvDescription) -> VLAShape:
        """The shape for the arrays and actions of an environment."""
        return cls(config, dict(description.arrays), description.action_dim)

    def to_json(self) -> dict[str, Any]:
        """The JSON stored in `config.json`."""
        arrays = {n: {"shape": list(spec.shape), "dtype": spec.dtype} for n, spec in self.arrays.items()}
        return {
            "model_type": MODEL_TYPE,
            "action_dim": self.action_dim,
            "arrays": arrays,
            "vla": self.config.model_dump(mode="json"),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> VLAShape:
        """Read what `to_json` wrote."""
        if content["model_type"] != MODEL_TYPE:
            raise ValueError(f"model_type is {content['model_type']!r}, not {MODEL_TYPE!r}")
        arrays = {n: ArraySpec(tuple(a["shape"]), a["dtype"]) for n, a in content["arrays"].items()}
        return cls(VLAConfig.model_validate(content["vla"]), arrays, int(content["action_dim"]))


class VLAModel(nn.Module):
    """Encoder and head. The same seed gives the same initial weights."""

    def __init__(self, shape: VLAShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = Encoder(shape.config, shape.arrays)
            self.head: TokenHead | FlowHead = HEADS[shape.config.head](shape.config, shape.action_dim)

    def encode(self, arrays: dict[str, Tensor], instructions: Tensor, rows: Tensor) -> Tensor:
        """Encode states to [B, width]."""
        return self.encoder(arrays, instructions, rows)  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.encoder.norm.weight.device
