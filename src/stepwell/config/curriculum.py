"""Settings of tasks that change while a run learns."""

from __future__ import annotations

from pydantic import Field, field_validator

from stepwell.config.base import ObjectName, Settings
from stepwell.core.names import suggest_name
from stepwell.core.user_objects import is_import_path

GENERATOR_NAMES = ("fresh",)
"""The built-in generators of a phase's tasks."""


class CurriculumConfig(Settings):
    """Tasks by phase. Without phases, a run goes through one list of tasks."""

    updates_per_phase: int | None = Field(
        None,
        ge=1,
        description="updates with the tasks of one phase, then new tasks are made; None: one list of "
        "train.num_tasks tasks for the whole run",
    )
    generator: ObjectName = Field(
        "fresh",
        description="what makes the tasks of a phase, from the second one on: `fresh` takes the next of "
        "train.num_tasks, or `module:function` of your own",
    )

    @field_validator("generator")
    @classmethod
    def _check_generator(cls, name: str) -> str:
        if name not in GENERATOR_NAMES and not is_import_path(name):
            raise ValueError(
                f'must be "fresh" or module:function, got {name!r}{suggest_name(name, GENERATOR_NAMES)}'
            )
        return name
