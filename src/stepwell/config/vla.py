"""Settings of a robot policy: its head, the chunk it predicts, and how large it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class VLAConfig(Settings):
    """A small vision-language-action policy."""

    head: Literal["token", "flow"] = Field(
        "token", description="bins of every action dimension in parallel, or flow matching"
    )
    chunk: int = Field(5, ge=1, description="actions predicted, and executed, at a time")
    bins: int = Field(256, ge=2, description="token head: bins of one action dimension over [-1, 1]")
    bin_rank: int = Field(32, ge=1, description="token head: rank of the logits of one dimension's bins")
    denoising_steps: int = Field(4, ge=2, description="flow head: steps from noise to an action")
    noise_level: float = Field(
        0.5, gt=0, description="flow head: noise of the sampler that is trained on; evaluation has none"
    )
    width: int = Field(128, ge=8, description="width of the trunk")
    layers: int = Field(2, ge=0, description="residual blocks of the trunk, and of a flow head")
    instruction_width: int = Field(32, ge=4, description="width of the instruction's encoding")
    image_channels: int = Field(32, ge=4, description="channels of the convolutions over camera images")
