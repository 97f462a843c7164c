"""Settings of replay: earlier successes that an update learns from again."""

from __future__ import annotations

from pydantic import Field, model_validator

from stepwell.config.base import Settings


class ReplayConfig(Settings):
    """Steps of earlier successes, beside the episodes of an update (docs/curriculum.md)."""

    enabled: bool | None = Field(None, description="None: as the recipe says (`stepwell recipes NAME`)")
    min_perplexity: float = Field(
        1 / 0.95,
        ge=1,
        description="lowest perplexity of an action under the policy at the start of the phase; "
        "what is below is known already",
    )
    max_perplexity: float = Field(
        1 / 0.5,
        ge=1,
        description="highest such perplexity; what is above is too far from the policy; 1e9: no limit",
    )
    max_per_fresh: float = Field(
        2.0, gt=0, description="replayed steps per step of the update's own episodes, at most"
    )
    with_failures: bool = Field(False, description="replay failures too")
    teaches_critic: bool = Field(
        True,
        description="the critic learns from replayed steps too, so that it values the policy that all "
        "of the data come from; false: from the update's own episodes alone",
    )
    max_scored: int = Field(
        1024, ge=1, description="trajectories whose perplexity is computed; drawn evenly from a larger buffer"
    )

    @model_validator(mode="after")
    def _check_band(self) -> ReplayConfig:
        if self.max_perplexity < self.min_perplexity:
            raise ValueError(
                f"replay.max_perplexity ({self.max_perplexity:g}) is below replay.min_perplexity "
                f"({self.min_perplexity:g}); swap them"
            )
        return self
