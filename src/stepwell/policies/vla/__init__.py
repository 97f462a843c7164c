"""Robot policies: a small vision-language-action model with a token head or a flow head.

Names are imported on first use, so that importing this package does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.policies.vla.lerobot import LeRobotSampler
    from stepwell.policies.vla.model import VLAModel, VLAShape
    from stepwell.policies.vla.policy import VLAPolicy

__all__ = ["LeRobotSampler", "VLAModel", "VLAPolicy", "VLAShape"]

__getattr__ = lazy_names(
    __name__, {"LeRobotSampler": "lerobot", "VLAModel": "model", "VLAPolicy": "policy", "VLAShape": "model"}
)
