"""Robot policies: a small vision-language-action model with a token or a flow head.

Names are imported when first used, so that looking at this folder does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.policies.vla.lerobot import LeRobotSampler
    from stepwell.policies.vla.model import Shape, VLAModel
    from stepwell.policies.vla.policy import VLAPolicy

__all__ = ["LeRobotSampler", "Shape", "VLAModel", "VLAPolicy"]

__getattr__ = lazy_names(
    __name__, {"LeRobotSampler": "lerobot", "Shape": "model", "VLAModel": "model", "VLAPolicy": "policy"}
)
