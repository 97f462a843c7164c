"""Settings of Navigation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings


class NavigationOptions(Settings):
    """Room, instruction, limits of a turn and an episode, and what is observed."""

    instruction: Literal["base", "common"] = Field(
        "base", description="base names the target, common says what it is good for"
    )
    min_side: float = Field(4.0, ge=3, le=12, description="shortest side of a room in metres")
    max_side: float = Field(6.0, ge=3, le=12, description="longest side of a room in metres")
    num_things: int = Field(6, ge=2, le=12, description="pieces of furniture in a room")
    step_length: float = Field(0.25, ge=0.1, le=0.5, description="metres of one move")
    success_threshold: float = Field(1.0, ge=0.5, description="metres to the target's middle for success")
    must_face: bool = Field(
        False, description="success needs the agent turned to the target, in view, as well"
    )
    target_in_view: bool = Field(False, description="our own rooms: the target can be seen from the start")
    min_actions: int = Field(4, ge=1, le=1000, description="shortest solution of a task, at least")
    max_actions_per_turn: int = Field(5, ge=1, le=1000, description="actions of one turn")
    max_turns: int = Field(
        4, ge=1, le=1000, description="turns of an episode; reaching them unsolved is a failure"
    )
    observation: Literal["text", "image", "both"] = Field(
        "text", description="what the agent is shown: things in view in words, an image, or both"
    )
    image_size: int = Field(128, ge=16, le=1024, description="pixels along each side of an image")
    fov: float = Field(100.0, ge=30, le=150, description="field of view in degrees")

    @property
    def max_actions(self) -> int:
        """Actions there is time for; no task that needs more is made."""
        return self.max_actions_per_turn * self.max_turns

    @model_validator(mode="after")
    def _check_consistency(self) -> NavigationOptions:
        if self.min_actions > self.max_actions:
            raise ValueError(
                f"min_actions ({self.min_actions}) exceeds the actions there is time for "
                f"(max_turns {self.max_turns} x max_actions_per_turn {self.max_actions_per_turn})"
            )
        if self.min_side > self.max_side:
            raise ValueError(f"min_side ({self.min_side}) exceeds max_side ({self.max_side})")
        return self
