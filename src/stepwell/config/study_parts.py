"""The parts of a study's file: environments, variants, sweeps, the short form, and the choice of settings.

`study.py` puts them together. Names of environments, variants and choices become parts of folder names.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from stepwell.config.base import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")

Table = Literal["use", "golden", "dynamics", "credit", "time"]


class NamedSettings(Settings):
    """Something whose name becomes a part of a folder's name."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict, description="tables of a run's configuration")

    @field_validator("name")
    @classmethod
    def _is_plain(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} becomes a folder name: use only letters, digits and _ . + -")
        return name


class StudyEnvConfig(NamedSettings):
    """One environment in which all variants run; results are grouped by it."""

    base: str | None = Field(None, description="preset or TOML file of this environment; None: the study's")
    env_steps: int | None = Field(None, ge=1, description="budget of each run here; None: the study's")
    elsewhere: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="other held-out tasks on which the trained agent is evaluated: settings, by a name",
    )


class VariantConfig(NamedSettings):
    """One of the compared configurations."""

    group: str = Field("", description="variants of a group share a panel of the plot")
    table: str = Field("", description="title of an extra table, with the baseline; empty: the main table")
    compare_with: str | None = Field(
        None, description="with `table`: the variant of the main table to show in it; None: the baseline"
    )
    environments: tuple[str, ...] | None = Field(None, description="environments of this variant; None: all")
    note: str = Field("", description="text shown below the table")
    choice_of: str | None = Field(
        None, description="with `[select]`: take what is chosen for this variant; None: an own choice"
    )


class SweepConfig(Settings):
    """One setting at several values: each line names the variants that have them, in their order."""

    name: str
    note: str = ""
    values: tuple[float, ...] = Field(min_length=2)
    lines: dict[str, tuple[str, ...]] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_lengths(self) -> SweepConfig:
        for line, variants in self.lines.items():
            if len(variants) != len(self.values):
                raise ValueError(
                    f"lines: {line!r} names {len(variants)} variants for {len(self.values)} values"
                )
        return self


class QuickConfig(Settings):
    """Changes for the short form; None changes nothing."""

    seeds: tuple[int, ...] | None = None
    environments: tuple[str, ...] | None = Field(None, description="names of those that the short form keeps")
    variants: tuple[str, ...] | None = Field(None, description="names of those that the short form keeps")
    env_steps: int | None = Field(None, ge=1, description="environment steps of each run")
    rollouts: int | None = Field(None, ge=1, description="trajectories of an update")
    settings: dict[str, Any] = Field(default_factory=dict)


class ChoiceConfig(NamedSettings):
    """One of the values among which each variant's best is chosen, such as a learning rate."""


class GateConfig(Settings):
    """What must hold before variants may be compared (`--gate`), measured before any of them has learnt."""

    explained: float | None = Field(
        None, ge=0, le=1, description="share of the variance of returns that every critic explains, at least"
    )
    grounding: float | None = Field(
        None, ge=0, le=1, description="how right descriptions of what is seen are on average, at least"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of the runs of `--gate`")


class SelectConfig(Settings):
    """What is chosen for each variant before variants are compared: by training tasks, with other seeds."""

    seeds: tuple[int, ...] = Field(
        min_length=1, description="seeds of these runs; none of them may be a seed of the study"
    )
    choices: tuple[ChoiceConfig, ...] = Field(
        min_length=2, description="the values to choose from, in order; the first and the last are edges"
    )
    score: Literal["train", "held_out"] = Field(
        "train",
        description="what decides: success on training tasks in the last quarter of updates, or the last "
        "evaluation on held-out tasks, for runs that play no tasks or tasks that change",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of these runs; they override all others"
    )
