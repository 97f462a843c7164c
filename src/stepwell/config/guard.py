"""Settings of the guards against collapse."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class GuardConfig(Settings):
    """Guards against collapse: a limit on one update's change, and what happens when success falls."""

    max_kl: float | None = Field(
        None,
        gt=0,
        description="leave out the rest of an update's optimizer steps once the policy is further than this "
        "from the one that sampled (KL per token); none: never",
    )
    on_fall: Literal["ignore", "tell", "roll_back"] = Field(
        "tell", description="when held-out success falls below the best by more than chance explains"
    )
    fall_errors: float = Field(
        3.0, gt=0, description="standard errors of a difference that chance does not explain"
    )
    rate_after: float = Field(
        0.5,
        gt=0,
        le=1,
        description="factor of the learning rates after each time that weights were rolled back",
    )
