"""Settings of Courier."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings


class CourierOptions(Settings):
    """Town, and limits of a turn and an episode."""

    num_rows: int = Field(5, ge=1, le=32, description="blocks of the town from top to bottom")
    num_columns: int = Field(5, ge=1, le=32, description="blocks of the town from left to right")
    max_actions_per_turn: int = Field(3, ge=1, le=1000, description="actions of one turn")
    max_turns: int = Field(
        10, ge=1, le=1000, description="turns of an episode; reaching them unsolved is a failure"
    )
    oracle: Literal["plan", "fetcher"] = Field(
        "plan",
        description="who demonstrates. plan: a shortest way; fetcher: takes the parcel, then walks anywhere",
    )
    door_words: Literal["moves", "compass"] = Field(
        "moves",
        description="how the way to the door is given. moves: like the way to the parcel (`2 down 1 left`); "
        "compass: `2 south 1 west`; then fetching the parcel does not teach the way to the door",
    )
    tile_size: int = Field(32, ge=8, le=256, description="pixels per block of an image")

    @property
    def max_actions(self) -> int:
        """Actions there is time for; no task that needs more is made."""
        return self.max_actions_per_turn * self.max_turns

    @model_validator(mode="after")
    def _check_consistency(self) -> CourierOptions:
        if self.num_rows * self.num_columns < 3:
            raise ValueError(
                f"a town needs three blocks for player, parcel and door, got {self.num_rows} x "
                f"{self.num_columns}: raise num_rows or num_columns"
            )
        if self.max_actions < 4:
            raise ValueError(
                f"the shortest delivery takes 4 actions, and there is time for {self.max_actions} "
                f"(max_turns {self.max_turns} x max_actions_per_turn {self.max_actions_per_turn})"
            )
        return self
