"""Every setting as a typed, documented pydantic model. No torch, so that `--help` is instant."""

from stepwell.config.policy import LoraSettings, PolicySettings

__all__ = ["LoraSettings", "PolicySettings"]
