"""Every setting as a typed, documented pydantic model. No torch, so that `--help` is instant."""

from stepwell.config.engine import EngineConfig
from stepwell.config.policy import LoraConfig, PolicyConfig

__all__ = ["EngineConfig", "LoraConfig", "PolicyConfig"]
