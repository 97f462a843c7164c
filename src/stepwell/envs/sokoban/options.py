"""Settings of Sokoban."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings


class SokobanOptions(Settings):
    """Room, limits of a turn and an episode, and what is observed."""

    num_rows: int = Field(6, ge=3, le=16, description="rows of the room, walls around it included")
    num_columns: int = Field(6, ge=3, le=16, description="columns of the room, walls around it included")
    num_boxes: int = Field(1, ge=1, le=8, description="boxes, and as many targets")
    wall_rate: float = Field(0.2, ge=0, lt=1, description="chance that a cell inside the room is a wall")
    min_actions: int = Field(5, ge=1, le=1000, description="shortest solution of a room, at least")
    max_actions: int | None = Field(
        None, ge=1, le=1000, description="shortest solution of a room, at most; None: all there is time for"
    )
    max_steps: int = Field(
        100, ge=1, le=100_000, description="executed actions of an episode; then it has failed"
    )
    max_actions_per_turn: int = Field(3, ge=1, le=1000, description="actions of one turn")
    max_turns: int = Field(
        3, ge=1, le=1000, description="turns of an episode; reaching them unsolved is a failure"
    )
    observation: Literal["text", "image", "both"] = Field("text", description="what the agent is shown")
    tile_size: int = Field(32, ge=8, le=256, description="pixels per cell of an image")

    @property
    def longest(self) -> int:
        """The longest solution a room may need: there must be time for it."""
        time = min(self.max_actions_per_turn * self.max_turns, self.max_steps)
        return time if self.max_actions is None else min(time, self.max_actions)

    @model_validator(mode="after")
    def _check_consistency(self) -> SokobanOptions:
        if self.min_actions > self.longest:
            raise ValueError(
                f"min_actions ({self.min_actions}) exceeds the longest solution allowed ({self.longest}: the "
                "least of max_turns x max_actions_per_turn, max_steps and max_actions)"
            )
        inside = (self.num_rows - 2) * (self.num_columns - 2)
        if inside < 2 * self.num_boxes + 1:
            raise ValueError(
                f"num_boxes ({self.num_boxes}) do not fit: {inside} cells lie inside a room of "
                f"{self.num_rows} x {self.num_columns}, boxes, targets and the player need "
                f"{2 * self.num_boxes + 1}"
            )
        return self
