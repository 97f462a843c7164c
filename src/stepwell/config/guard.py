"""Settings of the guards against collapse."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class GuardConfig(Settings):
    """Guards against collapse: a limit on one update's change, and what happens when success falls."""

    table_name = "train.guard"
    max_kl: float | None = Field(
        None,
        gt=0,
        description="leave out the rest of an update's optimizer steps once the policy is further than this "
        "from the one that sampled (KL per token); none: never",
    )
    on_fall: Literal["ignore", "warn", "roll_back"] = Field(
        "warn", description="when held-out success falls below the best by more than chance explains"
    )
    fall_threshold: float = Field(
        3.0, gt=0, description="standard errors above which a fall is more than chance"
    )
    learning_rate_factor: float = Field(
        0.5,
        gt=0,
        le=1,
        description="the learning rates are multiplied by it after each roll-back of weights",
    )
