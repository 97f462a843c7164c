"""Settings of the household."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings
from stepwell.envs.household.catalogue import CATALOGUES, FAMILIES, Catalogue, Family
from stepwell.envs.options import declare_host_option


class HouseholdOptions(Settings):
    """Size, tasks, limits, which households are held out, and who demonstrates."""

    size: Literal["full", "tiny"] = Field(
        "full", description="full: rooms like ALFWorld's; tiny: few places, short names and commands"
    )
    families: tuple[Family, ...] = Field(
        FAMILIES, min_length=1, description="families of tasks, each with the same chance"
    )
    held_out: Literal["seen", "unseen"] = Field(
        "seen", description="held-out tasks: new goals in the layouts of training, or other rooms and layouts"
    )
    num_layouts: int = Field(60, ge=1, le=10_000, description="layouts that training tasks are drawn from")
    max_turns: int | None = Field(None, ge=1, le=1000, description="turns of an episode; None: 20, tiny 10")
    spare_turns: int | None = Field(
        None, ge=0, le=1000, description="turns left over by a shortest plan, at least; None: 6, tiny 2"
    )
    oracle: Literal["plan", "explorer"] = Field(
        "plan", description="plan: a shortest plan, all known; explorer: one that has to look for things"
    )
    games: str | None = declare_host_option(
        None, description="folder of ALFWorld's games (game.tw-pddl files) to play instead of generated ones"
    )

    @property
    def catalogue(self) -> Catalogue:
        """What households of this size are made of."""
        return CATALOGUES[self.size]

    @property
    def turns(self) -> int:
        """Turns of an episode."""
        return self.catalogue.max_turns if self.max_turns is None else self.max_turns

    @property
    def longest(self) -> int:
        """The longest shortest plan a task may need."""
        spare = self.catalogue.spare_turns if self.spare_turns is None else self.spare_turns
        return self.turns - spare

    @model_validator(mode="after")
    def _check_consistency(self) -> HouseholdOptions:
        if self.longest < 4 and self.games is None:
            raise ValueError(
                f"max_turns ({self.turns}) less spare_turns leaves {self.longest} turns for a plan; "
                "the shortest ones take 4"
            )
        if len(set(self.families)) != len(self.families):
            raise ValueError(f"families are named twice: {', '.join(self.families)}")
        return self
