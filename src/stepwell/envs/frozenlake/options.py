"""Settings of FrozenLake."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings


class FrozenLakeOptions(Settings):
    """Board, limits of a turn and an episode, and what is observed."""

    size: int = Field(4, ge=2, le=32, description="rows and columns of the board")
    hole_rate: float = Field(
        0.2, ge=0, lt=1, description="chance that a cell other than start and goal is a hole"
    )
    is_slippery: bool = Field(
        False, description="a move goes as meant in one of three cases, else to one of its two sides"
    )
    min_actions: int = Field(2, ge=1, le=1000, description="shortest solution of a board, at least")
    max_actions_per_turn: int = Field(3, ge=1, le=1000, description="actions of one turn")
    max_turns: int = Field(
        3, ge=1, le=1000, description="turns of an episode; reaching them unsolved is a failure"
    )
    observation: Literal["text", "image", "both"] = Field("text", description="what the agent is shown")
    compass: bool = Field(
        False, description="a first line of the text says how far the goal is, such as `2 up, 1 left`"
    )
    tile_size: int = Field(32, ge=8, le=256, description="pixels per cell of an image")

    @property
    def max_actions(self) -> int:
        """Actions there is time for; no board that needs more is made."""
        return self.max_actions_per_turn * self.max_turns

    @model_validator(mode="after")
    def _check_consistency(self) -> FrozenLakeOptions:
        if self.min_actions > self.max_actions:
            raise ValueError(
                f"min_actions ({self.min_actions}) exceeds the actions there is time for "
                f"(max_turns {self.max_turns} x max_actions_per_turn {self.max_actions_per_turn})"
            )
        return self
