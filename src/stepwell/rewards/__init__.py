"""A step's reward, part by part, each part kept in the record."""

from stepwell.rewards.parts import compose, part_names, step_parts
from stepwell.rewards.state_match import match_state

__all__ = ["compose", "match_state", "part_names", "step_parts"]
