"""Settings of who judges whether an episode solved its task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from stepwell.config.base import Settings
from stepwell.config.judge import EndpointConfig

CHECKER = "checker"


class OutcomeConfig(Settings):
    """Who judges the episodes that a run learns from; held-out evaluation is always the checker's."""

    judge: tuple[str, ...] = Field(
        (CHECKER,),
        description="`checker`: the environment's own verdict; `model:DIR`: a folder of `stepwell orm train`;"
        " `endpoint:NAME`: a table `[outcome.endpoints.NAME]`; a list of them judges together",
    )
    combine: Literal["mean", "majority"] = Field(
        "mean", description="several judges: the mean of their probabilities, or the share that says yes"
    )
    from_update: int = Field(1, ge=1, description="earlier updates keep the checker's verdict")
    from_phase: int = Field(
        1,
        ge=1,
        description="earlier phases of the curriculum keep the checker's verdict; 2: all but the first",
    )
    endpoints: dict[str, EndpointConfig] = Field(
        default_factory=dict,
        description="models behind chat APIs by name, each with the settings of `rewards.judge.endpoint`",
    )
    device: str = Field("cpu", description="where outcome models run, such as cuda:0")

    @property
    def is_judged(self) -> bool:
        """Whether anybody but the checker judges."""
        return self.judge != (CHECKER,)

    @field_validator("judge", mode="before")
    @classmethod
    def _allow_one(cls, value: Any) -> Any:
        """One judge need not be a list."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_judges(self) -> OutcomeConfig:
        if not self.judge:
            raise ValueError('judge is empty; name one, such as "checker"')
        for name in self.judge:
            kind, _, rest = name.partition(":")
            if name != CHECKER and not (kind in ("model", "endpoint") and rest):
                raise ValueError(f'judge must be "checker", "model:DIR" or "endpoint:NAME", got {name!r}')
            if kind != "endpoint":
                continue
            if rest not in self.endpoints:
                raise ValueError(
                    f"judge {name!r} needs a table [outcome.endpoints.{rest}] with url and model"
                )
            if not self.endpoints[rest].url or not self.endpoints[rest].model:
                raise ValueError(f"outcome.endpoints.{rest} needs url and model; set them")
        return self
