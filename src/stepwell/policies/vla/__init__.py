"""Robot policies: a small vision-language-action model with a token or a flow head.

Names are imported when first used, so that looking at this folder does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.policies.vla.lerobot import LeRobotSampler
    from stepwell.policies.vla.model import Shape, VLAModel
    from stepwell.policies.vla.policy import VLAPolicy

__all__ = ["LeRobotSampler", "Shape", "VLAModel", "VLAPolicy"]

_HOMES = {"LeRobotSampler": "lerobot", "Shape": "model", "VLAModel": "model", "VLAPolicy": "policy"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
