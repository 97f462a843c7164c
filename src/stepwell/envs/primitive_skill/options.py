"""Settings of PrimitiveSkill."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class PrimitiveSkillOptions(Settings):
    """Which task, limits of a turn and an episode, and what is observed."""

    task: Literal["any", "place", "stack", "drawer", "align"] = Field(
        "any", description="what is to be done; any: one of the four, by the seed"
    )
    max_actions_per_turn: int = Field(2, ge=1, le=8, description="primitives of one turn, with | between")
    max_turns: int = Field(
        3, ge=2, le=1000, description="turns of an episode; reaching them unsolved is a failure"
    )
    observation: Literal["text", "image", "both"] = Field(
        "text",
        description="text: positions with names; image: an image, and positions without names; both: both",
    )
    simulator: Literal["mujoco", "maniskill"] = Field(
        "mujoco",
        description="maniskill: a Panda in SAPIEN, where ManiSkill is installed; it has no drawer",
    )
    image_size: int = Field(128, ge=32, le=1024, description="pixels along each side of an image")
