"""Settings of tasks that change while a run learns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from stepwell.config.base import OptionalObjectName, Settings, Url
from stepwell.core.names import suggest_name
from stepwell.core.user_objects import is_import_path

GENERATOR_NAMES = ("fresh", "evolve", "endpoint")
"""The built-in generators of a phase's tasks."""


class TaskEndpointConfig(Settings):
    """A model behind an OpenAI-compatible chat API that writes tasks."""

    url: Url = Field(None, description="base URL, up to and without `/chat/completions`")
    model: str = Field("", description="name of the model there")
    key_variable: str = Field(
        "STEPWELL_TASKS_KEY", description="environment variable that holds the API key; may be unset"
    )
    prompt: Literal["breadth", "ladder", "coverage"] = Field(
        "breadth",
        description="new tasks as hard as the failed ones, easier and harder ones, or what these leave out",
    )
    temperature: float = Field(
        1.0, ge=0, description="temperature of replies with tasks; questions about feasibility have 0"
    )
    max_tokens: int = Field(1024, ge=1, description="longest reply")
    max_concurrent: int = Field(8, ge=1, description="calls in flight at once")
    rate_per_s: float = Field(0.0, ge=0, description="calls per second; 0: no limit")
    timeout_s: float = Field(120.0, gt=0, description="longest wait for one reply")
    max_retries: int = Field(4, ge=0, description="retries after a temporary failure")
    backoff_s: float = Field(1.0, ge=0, description="wait before the first retry; it doubles each time")


class CurriculumConfig(Settings):
    """Tasks by phase. Without phases, a run goes through one list of tasks."""

    enabled: bool | None = Field(
        None, description="None: with `updates_per_phase`, or if the recipe asks for phases"
    )
    updates_per_phase: int | None = Field(
        None,
        ge=1,
        description="updates with the tasks of one phase, then new tasks are made; None: train.num_updates "
        "divided among `num_phases`",
    )
    num_phases: int | None = Field(
        None, ge=1, description="phases if `updates_per_phase` is None; None: 8, or 4 for a tiny model"
    )
    tasks_per_phase: int | None = Field(
        None,
        ge=1,
        description="tasks of one phase, repeated if its updates need more; None: as many as they need",
    )
    generator: OptionalObjectName = Field(
        None,
        description="what makes the tasks of a phase, from the second one on: `evolve` makes easier, similar "
        "and harder ones of what was not solved, `endpoint` has a model write some, `fresh` takes the next "
        "of train.num_tasks, or `module:function` of your own. None: `evolve` if the recipe asks for phases "
        "and the environment can, else `fresh`",
    )
    min_value: float = Field(
        0.05, description="an evolved task is kept if the critic's value of its first state is at least this"
    )
    max_value: float = Field(
        0.75, description="and at most this; both in units of a reward before rewards.scale"
    )
    max_tries: int = Field(
        10,
        ge=1,
        description="evolved tasks tried per task of a phase; if all are rejected, a new task is taken",
    )
    reference: Literal["phase", "start"] = Field(
        "phase",
        description="which policy the KL term compares with: the one before this phase, or the initial one",
    )

    endpoint: TaskEndpointConfig = Field(default_factory=TaskEndpointConfig)

    @field_validator("generator")
    @classmethod
    def _check_generator(cls, name: str | None) -> str | None:
        if name is not None and name not in GENERATOR_NAMES and not is_import_path(name):
            known = " or ".join(f'"{each}"' for each in GENERATOR_NAMES)
            raise ValueError(
                f"must be {known} or module:function, got {name!r}{suggest_name(name, GENERATOR_NAMES)}"
            )
        return name

    @model_validator(mode="after")
    def _check_values(self) -> CurriculumConfig:
        if self.generator == "endpoint" and not (self.endpoint.url and self.endpoint.model):
            raise ValueError('generator = "endpoint" needs endpoint.url and endpoint.model; set them')
        if self.max_value < self.min_value:
            raise ValueError(
                f"curriculum.max_value ({self.max_value:g}) is below curriculum.min_value "
                f"({self.min_value:g}); swap them"
            )
        return self
