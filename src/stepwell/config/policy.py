"""Settings of the policy: which model, with which critic, reference and adapters."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from stepwell.config.base import Settings
from stepwell.config.vla import VLAConfig


class LoraConfig(Settings):
    """Low-rank adapters in place of full training (needs the extra `lora`)."""

    rank: int = Field(16, ge=1, description="rank of the adapter matrices")
    alpha: float = Field(32.0, gt=0, description="the adapters' output is scaled by alpha / rank")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field(
        "all-linear", description="names of the layers that get adapters"
    )


class PolicyConfig(Settings):
    """The model that acts, and what is trained or kept beside it."""

    model: str = Field(
        "tiny-1m",
        min_length=1,
        description="a built-in name (tiny-…, smollm2-135m, smollm2-vlm), a Hugging Face directory, or an id "
        "of the Hugging Face hub (Qwen/Qwen2.5-0.5B-Instruct); "
        "in a robot environment a directory of a robot policy, else a fresh one is made as `vla` says",
    )
    revision: str | None = Field(
        None, description="branch, tag or commit of a model of the hub; None: its main branch"
    )
    critic: Literal["none", "shared", "own"] = Field(
        "none", description="no critic, a value head on the actor's backbone, or a backbone of its own"
    )
    reference: bool = Field(False, description="keep a frozen copy of the starting weights for the KL term")
    lora: LoraConfig | None = Field(None, description="train adapters only")
    train_vision: Literal["all", "projector", "none"] = Field(
        "all",
        description="which vision parts are trained: encoder and projector, the projector, or neither; "
        "a tiny model's random encoder shows enough already: with Muon it reads boards either way",
    )
    vla: VLAConfig | None = Field(
        None, description="a robot policy; None: its defaults in a robot environment"
    )
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="bfloat16 needs a GPU: most CPUs have no units for it"
    )
    device: str = Field("cpu", description="a torch device such as cpu or cuda:0")
    gradient_checkpointing: Literal["auto", "none", "selective", "mlp", "offload", "full"] = Field(
        "auto",
        description="what the backward pass computes again to save memory: nothing, outputs that are cheap "
        "to make (on a GPU), also the first products of feed-forward parts (on a GPU), or whole layers; "
        "offload: half of these products wait in the host's memory, a quarter is made again (on a GPU); "
        "auto: mlp below a width of 1024, else selective; gradients stay the same",
    )
    cuda_graphs: bool = Field(
        False, description="on CUDA in half precision, replay passes over few tokens as captured graphs"
    )

    @field_validator("gradient_checkpointing", mode="before")
    @classmethod
    def _read_switch(cls, value: Any) -> Any:
        """Earlier versions stored true or false."""
        return {True: "full", False: "none"}[value] if isinstance(value, bool) else value
